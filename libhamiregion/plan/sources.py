"""Where a plan comes from that a node is kept on: a file, the annotations of pods, or both."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

import attrs

from .annotations import plan_of_pods
from .limit_plan import LimitPlan, PlanError, parse_plan, read_plan_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libhamiregion.errors import PathLike

    from .annotations import AnnotationPlan
    from .limit_plan import Rule
    from .pods import PodWatch

# An editor that does not replace the file writes it within this time.
_BEING_WRITTEN_S = 0.2


@attrs.frozen
class SourceReading:
    """What a source says now.

    Attributes:
        plan: The plan; None as long as nothing is known, and then nothing is to be changed.
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
        """What it says now; never waits, never raises for what others have written."""

    def close(self) -> None:
        """Give back what it holds."""


class FixedPlan:
    """A plan that does not change."""

    def __init__(self, plan: LimitPlan) -> None:
        self._reading = SourceReading(plan)

    def read(self) -> SourceReading:
        """The plan."""
        return self._reading

    def close(self) -> None:
        """Do nothing; it holds nothing."""


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

    def load(self) -> None:
        """Read it for the first time, while somebody is there to correct it.

        Raises:
            PlanError: It is no plan.
            OSError: It cannot be read.
        """
        raw = read_plan_file(self.path)
        self._reading = SourceReading(parse_plan(raw, self.path))
        self._raw = raw

    def read(self) -> SourceReading:
        """The plan as it is, or as it was when it was last good."""
        try:
            raw = read_plan_file(self.path)
            if raw == self._raw:
                return self._reading
            if self._raw is not None and self._is_being_written():
                return self._reading
            plan = parse_plan(raw, self.path)
        except PlanError as error:
            self._raw = raw
            return self._failed(str(error))
        except OSError as error:
            # When it is back, it is looked at even if it is the same.
            self._raw = None
            return self._failed(f"{self.path}: {error.strerror or error}")
        self._raw = raw
        self._reading = SourceReading(plan)
        return self._reading

    def _failed(self, message: str) -> SourceReading:
        self._reading = SourceReading(self._reading.plan, {self.path: message})
        return self._reading

    def _is_being_written(self) -> bool:
        age_s = time.time() - os.stat(self.path).st_mtime  # noqa: PTH116
        return 0 <= age_s < _BEING_WRITTEN_S

    def close(self) -> None:
        """Do nothing; it holds nothing."""


class PodAnnotations:
    """The annotations of this node's pods as a plan.

    Threads: one at a time.

    Args:
        pods: The pods; `close` closes it.
    """

    def __init__(self, pods: PodWatch) -> None:
        self.pods = pods
        self._revision: int | None = None
        self._found: AnnotationPlan | None = None

    def read(self) -> SourceReading:
        """The rules of all pods whose annotations are right."""
        error = self.pods.error
        problems = {} if error is None else {"kubernetes": error}
        revision = self.pods.revision
        if revision != self._revision:
            pods = self.pods.pods()
            self._found = None if pods is None else plan_of_pods(pods)
            self._revision = revision
        if self._found is None:
            return SourceReading(None, problems)
        return SourceReading(self._found.plan, {**problems, **self._found.errors}, self._found.held)

    def close(self) -> None:
        """End the watch of the pods."""
        self.pods.close()


class SeveralSources:
    """Several sources as one; where they set the same value, the later one counts.

    Nothing is known until each of them knows something.

    Threads: one at a time.
    """

    def __init__(self, sources: Iterable[PlanSource]) -> None:
        self.sources = tuple(sources)
        self._plans: tuple[LimitPlan | None, ...] = ()
        self._plan: LimitPlan | None = None

    def read(self) -> SourceReading:
        """The rules of all sources, in order."""
        readings = [source.read() for source in self.sources]
        plans = tuple(reading.plan for reading in readings)
        # The same plans are the same object again, so that nobody compares thousands of rules.
        if len(plans) != len(self._plans) or any(
            new is not old for new, old in zip(plans, self._plans, strict=True)
        ):
            self._plans = plans
            self._plan = _joined(plans)
        return SourceReading(
            self._plan,
            {key: text for reading in readings for key, text in reading.problems.items()},
            frozenset().union(*(reading.held for reading in readings)),
        )

    def close(self) -> None:
        """Close all of them."""
        for source in self.sources:
            source.close()


def _joined(plans: Iterable[LimitPlan | None]) -> LimitPlan | None:
    rules: list[Rule] = []
    for plan in plans:
        if plan is None:
            return None
        rules += plan.rules
    return LimitPlan(tuple(rules))
