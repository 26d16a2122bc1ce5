"""An answer about a node, with what every such answer says of gaps, directories and the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

from libhamiregion.node import NvmlState, Observer, driver_gap

from .names import Chosen, Names, means, name_texts, names_of, some, unknown_name
from .output import show_all
from .tables import Block, Page, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from libhamiregion import DeviceUsage
    from libhamiregion.node import Container, Node, Observation, Selector
    from libhamiregion.observation.model import Gap, GapKind
    from libhamiregion.observation.selector import HasDevice

    from .options import NodeChoice

_GAPS_SHOWN = 3
_WITHOUT_HAMI = (
    "no directory of HAMi's containers was found: only the driver's figures; --root names one, and"
    " in a container `hamiregion mine` shows its own"
)
_INCOMPLETE = (
    "not all of the node's processes can be seen from here, so states may be unknown; run as root"
    " in the host's pid namespace"
)


@attrs.frozen(kw_only=True)
class GapRow(Names):
    """Something that could not be looked at; what it hides is unknown.

    Attributes:
        kind: ``driver``, ``root`` or ``processes``.
        reason: Why, as one sentence.
        count: How many processes were not looked at; 1 for the driver and for a root.
    """

    kind: GapKind
    reason: str
    count: int


@attrs.frozen
class GpuState:
    """Whether a GPU works.

    Attributes:
        index: NVML index.
        uuid: ``GPU-…``; None if not known.
        state: ``ok``, or how it fails.
    """

    index: int
    uuid: str | None
    state: NvmlState


class Observes(Protocol):
    """Gives observations of a node: an `Observer`, a document, or the service of this pod."""

    def observe(self, *, max_age_s: float = ...) -> Observation:
        """Return an observation that is young enough."""


@attrs.frozen
class Replay:
    """In place of an observer: one observation, of a document."""

    observation: Observation
    taking_s = 0.0

    @property
    def asks_driver(self) -> bool:
        """Whether the driver was asked."""
        return self.observation.driver_asked

    def observe(self, **_: object) -> Observation:
        """Return the observation."""
        return self.observation


@attrs.frozen
class NodeView:
    """A node, and what is selected of it.

    Attributes:
        observer: Observes the node.
        selector: Selects containers and devices.
        node_choice: The options that chose the node.
        gpus: Selects devices by the driver's index of their GPU; empty for all.
    """

    observer: Observes
    selector: Selector
    node_choice: NodeChoice
    gpus: tuple[int, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether the node goes on; a document does not."""
        return not isinstance(self.observer, Replay)

    @property
    def live(self) -> Observer | None:
        """The observer of a node that can be read again; None for a document."""
        return self.observer if isinstance(self.observer, Observer) else None

    def show(
        self, page_of: Callable[[NodeView], Page], interval_s: float | None, as_json: bool
    ) -> None:
        """Show the page that a function makes of the node, once or at an interval."""
        show_all(lambda: page_of(self), interval_s, as_json)

    def device_test(self, observation: Observation) -> Callable[[HasDevice], bool] | None:
        """Return a function that says whether a device is selected; None if all are."""
        if self.selector.device is None and not self.gpus:
            return None
        indexes = observation.gpu_indexes
        return lambda device: (
            self.selector.matches_device(device)
            and (not self.gpus or indexes.get(device.uuid) in self.gpus)
        )

    def page(
        self,
        schema: str,
        observation: Observation,
        data: dict[str, Any],
        blocks: Sequence[Block],
        notes: Iterable[str] = (),
        *,
        found: bool,
    ) -> Page:
        """Make a page about the node, with gaps and notes.

        It is a failure if no directory of containers can be listed, or no container is selected.

        Args:
            schema: Name and version of the answer.
            observation: The observation that is shown.
            data: The answer for --json, without the keys that all pages of a node have.
            blocks: The answer for people.
            notes: Further notes.
            found: Whether the answer has something that was selected.
        """
        errors = sorted(observation.root_errors.items())
        warnings = tuple(f"{root}: {reason}" for root, reason in errors)
        gaps = [
            GapRow(
                **attrs.asdict(_gap_names(gap)), kind=gap.kind, reason=gap.reason, count=gap.count
            )
            for gap in observation.gaps
            # Regions that an observation leaves out because of their size are read all the same.
            if gap.kind != "slots"
        ]
        failure = observation.root_problem
        if failure is not None and not self.node_choice.roots:
            failure += (
                "; name it with --root, or look for regions elsewhere with --outside;"
                " in a container, `hamiregion mine` shows its own"
            )
        failure = failure or self._unknown_gpus(observation)
        if failure is None and not found:
            failure = self._selection_failure(observation)
        is_empty = not any(isinstance(block, Table) and block.records for block in blocks)
        return Page(
            schema,
            {
                "taken_at_ns": observation.regions_read_at_ns,
                "complete": observation.processes.is_complete,
                "warnings": warnings,
                "gaps": gaps,
                "gpus": [GpuState(gpu.index, gpu.uuid, gpu.state) for gpu in observation.gpus],
                **data,
            },
            # A heading without rows before an error reads as an answer.
            () if failure is not None and is_empty else blocks,
            notes=(
                *([] if observation.roots or observation.containers else [_WITHOUT_HAMI]),
                *_failed_gpus(observation),
                *_gap_notes(observation),
                *notes,
            ),
            warnings=warnings,
            failure=failure,
        )

    def _selection_failure(self, observation: Observation) -> str | None:
        """Say that nothing is selected, and list what there is; None if something is."""
        selector, containers = self.selector, observation.all_containers
        chosen = [each for each in containers if selector.matches(each)]
        texts = selector.texts if isinstance(selector, Chosen) else ()
        for text in texts:
            if not any(means(text, selector.namespace, each) for each in containers):
                return unknown_name(text, selector.namespace, containers)
        if not chosen and any(attrs.astuple(selector)):
            names = sorted(name_texts(containers).values())
            return f"no container is selected; there is {some(names)}"
        devices = [device for each in chosen for device in devices_of(observation, each)]
        if selector.device is None or not chosen or any(map(selector.matches_device, devices)):
            return None
        there_is = dict.fromkeys(f"{each.index} ({each.uuid or 'no uuid'})" for each in devices)
        return f"no device {selector.device} in the containers selected; there is {some(there_is)}"

    def _unknown_gpus(self, observation: Observation) -> str | None:
        there_are = {each.index: each.name for each in observation.gpus}
        wrong = [number for number in self.gpus if number not in there_are]
        if not wrong:
            return None
        _, gap = driver_answer(observation)
        named = some(f"{index} ({name or 'no name'})" for index, name in there_are.items())
        why = f"there is {named}" if there_are else gap or "the driver was not asked"
        return f"GPU {wrong[0]} is not known: {why}"


def _gap_names(gap: Gap) -> Names:
    if gap.container is None and gap.container_id is not None:
        return Names(pod_uid=gap.container_id.pod_uid, container_id=gap.container_id.id)
    return Names(**names_of(gap.container))


def driver_answer(observation: Observation) -> tuple[dict[str, Any] | None, str | None]:
    """Whether the driver answered, for --json, and why there are no figures of it.

    None and None if it was not asked.
    """
    if not observation.driver_asked:
        return None, None
    gaps = (gap.reason for gap in observation.gaps if gap.kind == "driver")
    message = next(gaps, None) or driver_gap(observation.processes, observation.sample)
    sample = observation.sample
    state = NvmlState.TIMEOUT if sample is None else sample.state
    version = None if sample is None else sample.driver_version
    return {"state": state, "message": message, "version": version}, message


def node_warnings(node: Node) -> tuple[str, ...]:
    """Say which directories could not be listed, and why."""
    return tuple(
        f"{root}: {error.strerror or error}" for root, error in sorted(node.root_errors.items())
    )


def root_failure(node: Node, roots: tuple[str, ...]) -> str | None:
    """Say which directories were given, if none of them can be listed."""
    return node.root_problem if roots else None


def devices_of(observation: Observation, container: Container) -> tuple[DeviceUsage, ...]:
    """The devices of a container's region; none if it could not be read."""
    if container not in observation.containers:
        return ()
    row = observation.containers.index(container)
    return () if observation.table.error(row) else observation.table.snapshot(row).devices


def _failed_gpus(observation: Observation) -> list[str]:
    """Say which GPUs do not work."""
    return [
        f"GPU {each.index} ({each.uuid or 'no uuid known'}) does not work: {each.state.value},"
        f" {each.state.explanation}"
        for each in observation.gpus
        if each.state.is_failure
    ]


def _gap_notes(observation: Observation) -> list[str]:
    """Say which processes this user cannot see from here."""
    is_complete = observation.processes.is_complete
    texts = name_texts(observation.all_containers)
    reasons = []
    for gap in observation.gaps:
        # If no process may be read, one sentence says so.
        if gap.kind == "processes" and (is_complete or "may not be read" not in gap.reason):
            where = texts.get(gap.container) if gap.container else _gap_names(gap).path_words
            reasons.append(f"{where}: {gap.reason}" if where else gap.reason)
    notes = ([] if is_complete else [_INCOMPLETE]) + reasons[:_GAPS_SHOWN]
    if len(reasons) > _GAPS_SHOWN:
        more = len(reasons) - _GAPS_SHOWN
        notes.append(f"{more} more containers have processes that are not known")
    return notes
