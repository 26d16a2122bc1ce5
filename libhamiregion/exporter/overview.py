"""The page at ``/``: `hamiregion top` for a browser, made on the server; it runs no script."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs

from libhamiregion import __version__
from libhamiregion.doctor import Severity
from libhamiregion.html_template import html_template
from libhamiregion.node import SLOT_STATES, driver_gap
from libhamiregion.observation.figures import size_or_none
from libhamiregion.observation.without_region import figures_without_region
from libhamiregion.text import printable
from libhamiregion.units import format_size, sm_limit_or_none

from .labels import program_of

if TYPE_CHECKING:
    import jinja2

    from .collectors import DoctorCollector
    from .scrape import Scrape, ShownRegion

#: How often a browser asks for a new page.
PAGE_INTERVAL_S = 5.0
#: Further containers are on the next page.
CONTAINERS_PER_PAGE = 250
_PROCESSES = 64
_FINDINGS = 25
_MISSING = 25
_GAPS = 10
_GPUS = 32
_TEXT_LIMIT: Final = 500
_NAME_LIMIT: Final = 80
_HERE: Final = Path(__file__).parent
_STYLE: Final = (_HERE / "overview.css").read_text(encoding="utf-8")
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

#: For the answer: no script, nothing from elsewhere, no style but the page's own, no frame around.
HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}


class PageView(NamedTuple):
    """What a page shows, by its address.

    Attributes:
        first: How many containers it leaves out: ``from``.
        opened: The key of the container whose processes are shown, if any: ``open``.
    """

    first: int
    opened: str | None

    @classmethod
    def of(cls, query: str) -> PageView:
        """Read the query of an address; what makes no sense is left out."""
        asked = {name: values[0] for name, values in parse_qs(query[:200]).items()}
        first = int(asked["from"]) if re.fullmatch("[0-9]{1,6}", asked.get("from", "")) else 0
        opened = asked["open"] if re.fullmatch("[0-9a-f]{16}", asked.get("open", "")) else None
        return cls(first, opened)


def page_html(scrape: Scrape, doctor: DoctorCollector, view: PageView) -> bytes:
    """Write the page: problems, then containers by their names, a bounded number of everything.

    Args:
        scrape: The node's containers.
        doctor: Has the findings.
        view: What is shown of them.

    Raises:
        ModuleNotFoundError: jinja2 is missing, which the extra ``exporter`` installs.
    """
    first, opened = view
    observation = scrape.observation
    by_name = sorted(scrape.texts.regions, key=lambda each: (each.labels.own, each.row))
    first = max(0, min(first, len(by_name) - 1))
    missing = [each for each in observation.missing if each not in scrape.texts.hidden]
    figures = figures_without_region(scrape.join) if missing and observation.states else {}
    order = list(Severity)
    findings = sorted(doctor.findings, key=lambda each: order.index(each.severity))
    page = {
        "node": scrape.node_name,
        "containers": [
            _container(scrape, each, opened)
            for each in by_name[first : first + CONTAINERS_PER_PAGE]
        ],
        "count": len(by_name),
        "first": first,
        "gpus": observation.gpus[:_GPUS],
        "missing": [
            (
                scrape.texts.labels[each],
                "" if each.missing is None else each.missing.message,
                figures.get(each, ()),
            )
            for each in missing[:_MISSING]
        ],
        "missing_count": len(missing),
        "findings": findings[:_FINDINGS],
        "finding_count": len(findings),
        "gaps": [each.reason for each in observation.gaps[:_GAPS]],
        "driver_gap": _driver_gap(scrape),
        "ages_s": _ages_s(scrape, doctor),
    }
    return _template().render(page=page, opened=opened).encode("utf-8", "replace")


def _ages_s(scrape: Scrape, doctor: DoctorCollector) -> dict[str, float | None]:
    observation, now_s, clock_s = scrape.observation, time.time(), time.monotonic()
    sample, states = observation.sample, observation.states
    return {
        "regions": now_s - observation.regions_read_at_ns / 1e9,
        "processes": None if states is None else clock_s - observation.processes_read_s,
        "driver": None if sample is None else now_s - sample.taken_at_ns / 1e9,
        "doctor": None if doctor.diagnosed_s is None else clock_s - doctor.diagnosed_s,
    }


def _driver_gap(scrape: Scrape) -> str | None:
    """Why there are no figures of the driver, as one sentence."""
    observation = scrape.observation
    reasons = [gap.reason for gap in observation.gaps if gap.kind == "driver"]
    return reasons[0] if reasons else driver_gap(observation.processes, observation.sample)


def _container(scrape: Scrape, shown: ShownRegion, opened: str | None) -> dict[str, Any]:
    proved = scrape.observation.states
    slots = b"" if proved is None else proved.states[shown.slots.start : shown.slots.stop]
    counts = {name: slots.count(at) for at, name in enumerate(SLOT_STATES)}
    container = shown.container
    # In an address: nothing that the container has chosen.
    name = container.directory or f"{container.container_id} {container.path_in_namespace}"
    key = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return {
        "key": key,
        "labels": shown.labels,
        "states": {name: count for name, count in counts.items() if count},
        "devices": [_device(scrape, shown, row) for row in shown.devices],
        "processes": _processes(scrape, shown) if key == opened else None,
    }


def _device(scrape: Scrape, shown: ShownRegion, row: int) -> dict[str, Any]:
    devices = scrape.observation.table.devices
    used, limit = size_or_none(devices.memory_used_bytes[row]), devices.memory_limit_bytes[row]
    return {
        "index": devices.device[row],
        "uuid": devices.uuid(row),
        "used": used,
        "limit": limit or None,
        "ratio": used / limit if limit and used is not None else None,
        "driver": scrape.driver_memory[row],
        "sm": scrape.device_percents[row] if shown.has_utilization else None,
        "sm_limit": sm_limit_or_none(devices.sm_limit_percent[row]),
    }


def _processes(scrape: Scrape, shown: ShownRegion) -> list[dict[str, Any]]:
    table, slots = scrape.observation.table, scrape.observation.states
    cells, first = table.usages.memory_used_bytes, table.processes.first_usage
    used = {at: sum(cells[first[at] : first[at] + len(shown.devices)]) for at in shown.slots}
    return [
        {
            "pid": table.processes.pid[at],
            "state": "unknown" if slots is None else SLOT_STATES[slots.states[at]],
            "process": None if slots is None else slots.processes.get(at),
            "used": size_or_none(used[at]),
        }
        for at in sorted(used, key=lambda at: -used[at])[:_PROCESSES]
    ]


@functools.cache
def _template() -> jinja2.Template:
    return html_template(
        _HERE / "overview.html",
        style=_STYLE,
        text_limit=_TEXT_LIMIT,
        filters={
            "size": lambda nbytes: "\u2013" if nbytes is None else format_size(nbytes),
            "name": lambda text: printable(text, _NAME_LIMIT) if text else "\u2013",
            "program": program_of,
            "age": _age,
            "code": _code,
            "level": _level,
        },
        values={
            "version": __version__,
            "interval_s": round(PAGE_INTERVAL_S),
            "per_page": CONTAINERS_PER_PAGE,
        },
    )


def _code(text: str) -> str:
    """Escape a sentence, with the parts between backticks as code.

    >>> str(_code("run `hamiregion ps` <now>"))
    'run <code>hamiregion ps</code> &lt;now&gt;'
    """
    import markupsafe

    escaped = str(markupsafe.escape(printable(text, _TEXT_LIMIT)))
    marked = re.sub("`([^`]+)`", r"<code>\1</code>", escaped)
    return markupsafe.Markup(marked)  # noqa: S704 (escaped above)


def _age(seconds: float | None) -> str:
    """Say how old something is.

    >>> _age(None), _age(75.4)
    ('not yet', '75 s ago')
    """
    return "not yet" if seconds is None else f"{seconds:.0f} s ago"


def _level(ratio: float | None) -> str:
    """Name the colour of a bar: as `hamiregion top` has them."""
    if ratio is None or ratio < 0.7:
        return "good"
    return "over" if ratio >= 0.9 else "near"
