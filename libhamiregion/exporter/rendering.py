"""From series to text: the formats of Prometheus (0.0.4) and OpenMetrics (1.0).

A family's samples are one template of bytes, made when its series change and filled with figures at
each scrape: some 80 ns per sample, of which most is spent on writing the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .labels import FIGURE, distinct, read_labels
from .metrics import Unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .labels import Labels
    from .metrics import MetricFamily

#: The content type of `NodeExporter.render`.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The same of ``render(openmetrics=True)``.
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@attrs.frozen(eq=False)
class Series:
    """The series of one family at one moment.

    Attributes:
        family: The family.
        labels: One text per series, such as ``{pod="a"}``. The same list as last time means the
            same series.
        values: One per series, in the family's unit.
        steady: The same values come again, for as long as it is the same sequence of values.
        label_figures: For a family with figures as the values of its last labels: a column each.
        body: The samples as text, where somebody has written it already; see `written`.
    """

    family: MetricFamily
    labels: Sequence[Labels]
    values: Sequence[int | float]
    steady: bool = False
    label_figures: tuple[Sequence[int], ...] = ()
    body: bytes | None = attrs.field(default=None, repr=False)

    def samples(self) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of each sample; ratios are 0 to 1 here."""
        scale = 100 if self.family.unit is Unit.PERCENT_AS_RATIO else 1
        figures = self.family.labels[-len(self.label_figures) :] if self.label_figures else ()
        for row, (labels, value) in enumerate(zip(self.labels, self.values, strict=True)):
            named = read_labels(labels)
            for name, column in zip(figures, self.label_figures, strict=True):
                named[name] = str(column[row])
            yield named, value / scale


def steady(family: MetricFamily, rows: Sequence[tuple[Labels, int | float]]) -> Series:
    """Series that stay as they are until others take their place; none of them twice."""
    kept = distinct(rows)
    return Series(family, [labels for labels, _ in kept], [value for _, value in kept], steady=True)


def written(series: Series) -> Series:
    """The same with its text, so that no scrape has to write it."""
    if not series.labels:
        return series
    return attrs.evolve(series, body=_template(series) % _arguments(series))


@attrs.define(eq=False)
class _Kept:
    labels: Sequence[Labels]
    #: Of steady series: the values that `body` has in it; None: it is a template.
    values: Sequence[int | float] | None
    body: bytes


def ratio_text(percent: float) -> bytes:
    """A figure in percent as a ratio.

    >>> ratio_text(37), ratio_text(100), ratio_text(250)
    (b'0.37', b'1', b'2.5')
    """
    ratio = percent / 100
    return b"%d" % ratio if ratio.is_integer() else repr(ratio).encode()


# Nearly every percentage is one of these.
_RATIOS = tuple(ratio_text(percent) for percent in range(101))


def _formatted(unit: Unit, values: Sequence[int | float]) -> tuple[int | float | bytes, ...]:
    """The values as a template takes them."""
    if unit is Unit.WHOLE:
        return tuple(values)
    if unit is Unit.PERCENT_AS_RATIO:
        ratios = _RATIOS
        return tuple(
            [ratios[each] if 0 <= each <= 100 else ratio_text(each) for each in values]  # type: ignore[index]
        )
    return tuple([repr(float(each)).encode() for each in values])


class Sheet:
    """Renders series, and keeps from one time to the next what has not changed.

    Not thread-safe by itself.
    """

    def __init__(self) -> None:
        self._kept: dict[MetricFamily, _Kept] = {}
        self._heads: dict[tuple[MetricFamily, bool], bytes] = {}

    def render(self, sheet: Iterable[Series], *, openmetrics: bool = False) -> list[bytes]:
        """The series as text in parts, in their order; families without any are left out."""
        parts: list[bytes] = []
        for series in sheet:
            family = series.family
            if not series.labels:
                self._kept.pop(family, None)
                continue
            body = series.body
            if body is None:
                body, self._kept[family] = self._body(series, self._kept.get(family))
            parts.append(self._head(family, openmetrics))
            parts.append(body)
        if openmetrics:
            parts.append(b"# EOF\n")
        return parts

    def _head(self, family: MetricFamily, openmetrics: bool) -> bytes:
        key = (family, openmetrics)
        head = self._heads.get(key)
        if head is None:
            name = family.base_name if openmetrics else family.name
            meaning = family.help.replace("\\", r"\\").replace("\n", r"\n")
            if openmetrics:
                meaning = meaning.replace('"', r"\"")
            head = f"# HELP {name} {meaning}\n# TYPE {name} {family.kind}\n".encode()
            self._heads[key] = head
        return head

    def _body(self, series: Series, before: _Kept | None) -> tuple[bytes, _Kept]:
        same_labels = before is not None and before.labels is series.labels
        if series.steady:
            if before is not None and same_labels and before.values is series.values:
                return before.body, before
            body = _template(series) % _arguments(series)
            return body, _Kept(series.labels, series.values, body)
        if before is None or not same_labels or before.values is not None:
            before = _Kept(series.labels, None, _template(series))
        return before.body % _arguments(series), before


def _template(series: Series) -> bytes:
    """All lines of a family with a place for each figure."""
    name = series.family.name.encode()
    end = b" " + FIGURE + b"\n"
    lines = name + (end + name).join(series.labels) + end
    place = b"%d" if series.family.unit is Unit.WHOLE else b"%b"
    return lines.replace(b"%", b"%%").replace(FIGURE, place)


def _arguments(series: Series) -> tuple[int | float | bytes, ...]:
    values = _formatted(series.family.unit, series.values)
    if not series.label_figures:
        return values
    rows = zip(*series.label_figures, values, strict=True)
    return tuple([figure for row in rows for figure in row])
