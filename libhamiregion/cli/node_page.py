"""An answer about a node, with what every such answer says of gaps, directories and the driver."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import click
from click.core import ParameterSource

from libhamiregion.bounded_file import read_bounded
from libhamiregion.node import NvmlState, driver_gap

from . import options
from .failures import Failure
from .names import Chosen, Names, means, name_texts, names_of, some, unknown_name
from .tables import Page, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from libhamiregion import DeviceUsage
    from libhamiregion.node import Container, Node, Observation, Observer, Selector
    from libhamiregion.observation.model import Gap, GapKind
    from libhamiregion.observation.selector import HasDevice

    from .options import DriverChoice, NodeChoice
    from .tables import Block

_GAPS_SHOWN = 3
# How long a program may take that writes a document into a pipe.
_SILENCE_S = 30.0
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


@attrs.frozen
class Replay:
    """In place of an observer: one observation, of a document.

    Attributes:
        observation: The observation.
    """

    observation: Observation

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

    observer: Observer | Replay
    selector: Selector
    node_choice: NodeChoice
    gpus: tuple[int, ...] = ()

    @property
    def node(self) -> Node:
        """The node; a document has none."""
        return self.live.node

    @property
    def live(self) -> Observer:
        """The observer of a node; a document has none."""
        assert not isinstance(self.observer, Replay)  # noqa: S101 (verbs that need it refuse it)
        return self.observer

    def device_test(self, observation: Observation) -> Callable[[HasDevice], bool] | None:
        """Return a function that says whether a device is selected; None if all are."""
        if self.selector.device is None and not self.gpus:
            return None
        sample = observation.sample
        indexes = {} if sample is None else sample.gpu_indexes
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
        warnings, gaps = _root_warnings(observation), self._gaps(observation)
        failure = observation.root_problem
        if failure is not None and not self.node_choice.roots:
            failure += "; name it with --root, or look for regions elsewhere with --outside"
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
                "gpus": _gpus(observation),
                **data,
            },
            # A heading without rows before an error reads as an answer.
            () if failure is not None and is_empty else blocks,
            notes=(*_failed_gpus(observation), *_gap_notes(observation), *notes),
            warnings=warnings,
            failure=failure,
        )

    def _gaps(self, observation: Observation) -> list[GapRow]:
        """The gaps, with the names of their containers."""
        rows = []
        for gap in observation.gaps:
            # Regions that an observation leaves out because of their size are read all the same.
            if gap.kind != "slots":
                names = attrs.asdict(_gap_names(gap))
                rows.append(GapRow(**names, kind=gap.kind, reason=gap.reason, count=gap.count))
        return rows

    def _selection_failure(self, observation: Observation) -> str | None:
        """Say that nothing is selected, and list what there is; None if something is."""
        selector, containers = self.selector, all_containers(observation)
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
        sample = observation.sample
        there_are = {} if sample is None else {each.index: each.name for each in sample.devices}
        wrong = [number for number in self.gpus if number not in there_are]
        if not wrong:
            return None
        _, gap = driver_answer(self.observer, observation)
        named = some(f"{index} ({name or 'no name'})" for index, name in there_are.items())
        why = f"there is {named}" if there_are else gap or "the driver was not asked"
        return f"GPU {wrong[0]} is not known: {why}"


def _gap_names(gap: Gap) -> Names:
    if gap.container is None and gap.container_id is not None:
        return Names(pod_uid=gap.container_id.pod_uid, container_id=gap.container_id.id)
    return Names(**names_of(gap.container))


#: A context with a view of a node.
View: TypeAlias = "contextlib.AbstractContextManager[NodeView]"


@contextlib.contextmanager
def _open_view(
    node_choice: NodeChoice,
    selector: Selector,
    driver: DriverChoice,
    document: str | None = None,
    gpus: tuple[int, ...] = (),
) -> Iterator[NodeView]:
    if document is not None:
        yield NodeView(read_document(document), selector, node_choice, gpus)
        return
    with driver.observe(node_choice) as observer:
        yield NodeView(observer, selector, node_choice, gpus)


_VIEW = ("node_choice", "selector", "driver")
_node_options = options.all_of(options.chosen_options, options.node_options, options.driver_options)
#: Adds the options of a node, its driver and a selection; the command gets `opened`, a `View`.
view_options = options.all_of(_node_options, options.group_options("opened", _VIEW, _open_view))
#: Adds --gpu and --from as well.
view_or_document_options = options.all_of(
    _node_options,
    options.gpu_option,
    options.from_option,
    options.group_options("opened", (*_VIEW, "document", "gpus"), _open_view),
)


# What chooses a node, or goes on reading it.
_OF_NODES = {
    *("roots", "outside", "proc", "pod_logs", "container_logs", "claims", "node_name"),
    *("no_driver", "library", "interval_s", "repairs", "repair", "dry_run"),
}


def read_document(path: str) -> Replay:
    """Read an observation that `hamiregion observe` has written.

    Raises:
        UsageError: Another option needs a node.
        Failure: The file is none.
    """
    from libhamiregion.observation.json import MAX_BYTES, DocumentError, from_json

    context = click.get_current_context()
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.name in _OF_NODES and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{each.opts[0]} needs a node, and --from has none")
    try:
        return Replay(from_json(read_bounded(path, MAX_BYTES, silence_s=_SILENCE_S)))
    except (DocumentError, OSError) as error:
        raise Failure(
            f"{path}: {error.strerror if isinstance(error, OSError) else error}"
        ) from None


def driver_answer(
    observer: Observer | Replay, observation: Observation
) -> tuple[dict[str, Any] | None, str | None]:
    """Whether the driver answered, for --json, and why there are no figures of it.

    None and None if it was not asked.
    """
    if not observer.asks_driver:
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


def all_containers(observation: Observation) -> tuple[Container, ...]:
    """The containers of an observation, those without a region last."""
    return (*observation.containers, *observation.missing)


def devices_of(observation: Observation, container: Container) -> tuple[DeviceUsage, ...]:
    """The devices of a container's region; none if it could not be read."""
    if container not in observation.containers:
        return ()
    row = observation.containers.index(container)
    return () if observation.table.error(row) else observation.table.snapshot(row).devices


def _root_warnings(observation: Observation) -> tuple[str, ...]:
    return tuple(f"{root}: {reason}" for root, reason in sorted(observation.root_errors.items()))


def _gpus(observation: Observation) -> list[GpuState]:
    devices = () if observation.sample is None else observation.sample.devices
    return [GpuState(each.index, each.uuid, each.state) for each in devices]


def _failed_gpus(observation: Observation) -> list[str]:
    """Say which GPUs do not work."""
    failed = () if observation.sample is None else observation.sample.failed
    return [
        f"GPU {each.index} ({each.uuid or 'no uuid known'}) does not work: {each.state.value},"
        f" {each.state.explanation}"
        for each in failed
    ]


def _gap_notes(observation: Observation) -> list[str]:
    """Say which processes this user cannot see from here."""
    is_complete = observation.processes.is_complete
    texts = name_texts(all_containers(observation))
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
