"""Where a plan comes from: a file, the annotations of pods (`.pods`), or both."""

from __future__ import annotations

import operator
import os
import time
from typing import TYPE_CHECKING, Protocol

import attrs

from .document import PlanError
from .limit_plan import LimitPlan
from .plan_file import parse_plan, read_plan_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from libhamiregion.errors import PathLike

# An editor that does not replace the file writes it within this time.
_BEING_WRITTEN_S = 0.2


@attrs.frozen
class SourceReading:
    """What a source says now.

    Attributes:
        plan: The plan; None as long as nothing is known, and then nothing is to be changed. The
            same object as before where nothing has changed.
        problems: What is wrong, by what it is about (a path, ``namespace/pod``, ``kubernetes``).
            What was known before stays in force.
        held: The UIDs of pods that are to be left as they are.
    """

    plan: LimitPlan | None
    problems: Mapping[str, str] = attrs.field(factory=dict)
    held: frozenset[str] = frozenset()


class PlanSource(Protocol):
    """Anything that says which plan a node is to be kept on."""

    def read(self) -> SourceReading:
        """What it says now. Never waits, never raises for what others have written."""

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, when `read` would say something new.

        A source that cannot tell does nothing: it is read at an interval too.
        """

    def close(self) -> None:
        """Give back what it holds."""


class PlanFile:
    """A plan in a file, which may be replaced or edited at any time.

    It is read again each time: the links of a ConfigMap are swapped, and an edit need not change a
    time stamp. A file that cannot be read or is no plan is a problem, and the last good plan stays.

    Threads: one at a time.

    Args:
        path: The file.

    Shell: ``hamiregion limits apply FILE --watch --root DIR``.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        self._raw: bytes | None = None
        self._reading = SourceReading(None)

    def read(self) -> SourceReading:
        """The plan as it is, or as it was when it was last good."""
        plan = self._reading.plan
        try:
            raw = read_plan_file(self.path, wait=False)
            is_first = self._raw is None and plan is None
            if raw == self._raw or (not is_first and self._is_being_written()):
                return self._reading
            self._raw = raw
            self._reading = SourceReading(parse_plan(raw, self.path))
        except PlanError as error:
            self._reading = SourceReading(plan, {self.path: str(error)})
        except OSError as error:
            # When it is back, it is looked at even if it is the same.
            self._raw = None
            problem = f"{self.path}: {error.strerror or error}"
            if isinstance(error, FileNotFoundError):
                problem += "; it is waited for"
            self._reading = SourceReading(plan, {self.path: problem})
        return self._reading

    def _is_being_written(self) -> bool:
        age_s = time.time() - os.stat(self.path).st_mtime  # noqa: PTH116
        return 0 <= age_s < _BEING_WRITTEN_S

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Do nothing: it is read at an interval."""

    def close(self) -> None:
        """Do nothing; it holds nothing."""


def join_readings(
    readings: Sequence[SourceReading], before: SourceReading | None = None
) -> SourceReading:
    """Several sources as one; where they set the same value, the later one counts.

    Args:
        readings: What each source says. Nothing is known until each of them knows something.
        before: The last result; its plan is returned again where no source's plan has changed.
    """
    plans = [reading.plan for reading in readings]
    plan: LimitPlan | None = None
    if len(plans) == 1:
        plan = plans[0]
    elif None not in plans:
        rules = tuple(rule for each in plans if each is not None for rule in each.rules)
        known = None if before is None else before.plan
        # Rules of plans that have not changed are the same objects.
        if (
            known is not None
            and len(known.rules) == len(rules)
            and all(map(operator.is_, known.rules, rules))
        ):
            plan = known
        else:
            plan = LimitPlan(rules)
    return SourceReading(
        plan,
        {key: text for reading in readings for key, text in reading.problems.items()},
        frozenset().union(*(reading.held for reading in readings)),
    )
