"""Nodes, and answers about them: this node, the service's in a pod, or those of documents."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import click
from click.core import ParameterSource

from libhamiregion.bounded_file import read_bounded
from libhamiregion.node import NvmlState, Observer, driver_gap

from . import options
from .failures import Failure, failures_of
from .names import Chosen, Names, means, name_texts, names_of, some, unknown_name
from .output import Answer, write_json
from .tables import Block, Column, Page, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from libhamiregion import DeviceUsage
    from libhamiregion.node import Container, Node, Observation, Selector
    from libhamiregion.observation.model import Gap, GapKind
    from libhamiregion.observation.selector import HasDevice

# How long a program may take that writes documents into a pipe.
_SILENCE_S = 30
_GAPS_SHOWN = 3
_WITHOUT_HAMI = (
    "no directory of HAMi's containers was found: only the driver's figures; --root names one, and"
    " in a container `hamiregion mine` shows its own"
)
_INCOMPLETE = (
    "not all of the node's processes can be seen from here, so states may be unknown; run as root"
    " in the host's pid namespace"
)


# ---- where observations come from ----------------------------------------------------------------


@attrs.frozen
class Service:
    """In place of an observer: the service of this pod, by its socket."""

    path: str

    def document(self) -> bytes:
        """Get its latest observation as text.

        Raises:
            Failure: It does not answer.
        """
        from libhamiregion.services.document_socket import read_document

        try:
            return read_document(self.path)
        except OSError as error:
            reason = error.strerror or error
            raise Failure(f"the service at {self.path} gives no document: {reason}") from None

    def observe(self, **_: object) -> Observation:
        """Get its latest observation.

        Raises:
            Failure: It does not answer, or is of another version.
        """
        from libhamiregion.observation.json import DocumentError, from_json

        with failures_of(DocumentError, about=f"the service at {self.path}: "):
            return from_json(self.document())


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


# What chooses a node.
_OF_NODES = {
    *("roots", "outside", "proc", "pod_logs", "container_logs", "claims", "node_name"),
    *("no_driver", "library"),
}


def _given(names: set[str]) -> str | None:
    """The first of these options that was typed."""
    context = click.get_current_context()
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.name in names and source is ParameterSource.COMMANDLINE:
            return each.opts[0]
    return None


def service() -> Service | None:
    """The service to ask in place of reading the node; None outside of its pod."""
    from libhamiregion.services.document_socket import VARIABLE

    path = os.environ.get(VARIABLE)
    # A Job has the variable, and no service.
    if not path or _given(_OF_NODES) is not None or not Path(path).exists():
        return None
    return Service(path)


def refuse_options_of_nodes(*refused: str) -> None:
    """Make sure that no option was typed that needs a node.

    Args:
        refused: Further parameters.

    Raises:
        UsageError: One was.
    """
    typed = _given({*_OF_NODES, "interval_s", *refused})
    if typed is not None:
        raise click.UsageError(f"{typed} needs a node, and --from has none")


def replay(document: str, *refused: str) -> Replay:
    """Read the document of one node, for a verb that takes no others.

    Args:
        document: The file.
        refused: Further parameters that need a node.

    Raises:
        UsageError: An option needs a node.
        Failure: The file is none.
    """
    refuse_options_of_nodes(*refused)
    if document == "-":
        raise click.UsageError("--from - has several nodes; this takes the FILE of one")
    from libhamiregion.observation.json import MAX_BYTES, DocumentError, from_json

    with failures_of(DocumentError, about=f"{document}: "):
        return Replay(from_json(read_bounded(document, MAX_BYTES, silence_s=_SILENCE_S)))


# ---- one node ------------------------------------------------------------------------------------


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
class NodeView:
    """A node, and what is selected of it.

    Attributes:
        observer: Observes the node.
        selector: Selects containers and devices.
        node_choice: The options that chose the node.
        gpus: Selects devices by the driver's index of their GPU; empty for all.
    """

    observer: Observer | Replay | Service
    selector: Selector
    node_choice: options.NodeChoice
    gpus: tuple[int, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether the node goes on; a document does not."""
        return not isinstance(self.observer, Replay)

    @property
    def live(self) -> Observer | None:
        """The observer of a node that can be read again; None for a document."""
        return self.observer if isinstance(self.observer, Observer) else None

    def show(self, page_of: Callable[[NodeView], Page], answer: Answer) -> None:
        """Show the page that a function makes of the node, once or at an interval."""
        answer.show_all(lambda: page_of(self))

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


# ---- several nodes -------------------------------------------------------------------------------


@attrs.frozen
class NodesView:
    """The nodes whose documents come on stdin.

    Attributes:
        view_of: Makes the view of one of them.
    """

    view_of: Callable[[Replay], NodeView]

    def show(self, page_of: Callable[[NodeView], Page], answer: Answer) -> None:
        """Show the pages that a function makes of the nodes as one, with a column NODE.

        Raises:
            Failure: No node is shown, or a document cannot be read.
        """
        pages: list[tuple[str, Page]] = []
        broken = []
        for node, observation in _documents():
            if isinstance(observation, Exception):
                broken.append(f"{node}: {observation}")
                continue
            page = page_of(self.view_of(Replay(observation)))
            if answer.as_json:
                write_json(page.schema, page.data, node=node)
            # A selection is of some node; a directory that cannot be listed is this node's.
            if observation.root_problem is not None:
                broken.append(f"{node}: {page.failure}")
            pages.append((node, page))
        Answer().show(_joined(pages, broken, with_tables=not answer.as_json))


def _documents() -> Iterator[tuple[str, Observation | Exception]]:
    from libhamiregion.observation.json import MAX_BYTES, DocumentError, from_lines

    # A program that writes them may have gone without closing the pipe.
    signal.alarm(_SILENCE_S)
    lines = iter(lambda: sys.stdin.buffer.readline(MAX_BYTES + 1), b"")
    try:
        with failures_of(DocumentError, about="stdin: "):
            yield from from_lines(lines)
    finally:
        signal.alarm(0)


def _joined(pages: Sequence[tuple[str, Page]], broken: Sequence[str], *, with_tables: bool) -> Page:
    """Make one page of those of several nodes; `broken` has nodes that are not shown."""
    tables: dict[tuple[str, ...], list[tuple[str, Table]]] = {}
    for node, page in pages if with_tables else ():
        for block in page.blocks:
            if isinstance(block, Table):
                names = tuple(column.name for column in block.columns)
                tables.setdefault(names, []).append((node, block))
    is_found = any(page.failure is None for _, page in pages)
    failures = [] if is_found else [f"{node}: {page.failure}" for node, page in pages]
    if broken:
        failures = [f"of {len(pages)} nodes not all could be shown"]
    return Page(
        "",
        {},
        [_joined_table(each) for each in tables.values()],
        notes=tuple(f"{node}: {note}" for node, page in pages for note in page.notes),
        warnings=(
            *(f"{node}: {each}" for node, page in pages for each in page.warnings),
            *broken,
        ),
        failure=next(iter(failures), None if pages else "stdin has no document"),
    )


@attrs.frozen
class _Row:
    """A record of one node's table."""

    node: str
    table: Table
    record: Any

    def value(self, at: int) -> Any:
        """Return what a column of its table has."""
        return self.table.columns[at].of(self.record, None)

    def style(self, at: int) -> str:
        """Return the style of that."""
        return self.table.columns[at].style_of(self.record, None)


def _joined_table(tables: Sequence[tuple[str, Table]]) -> Table:
    """Make one table of tables with the same columns, of which each may show names in its way."""
    columns = [
        column
        if column.part is not None
        else attrs.evolve(column, value=methodcaller("value", at), style=methodcaller("style", at))
        for at, column in enumerate(tables[0][1].columns)
    ]
    return Table(
        (Column("NODE", "node", "name", style="bold"), *columns),
        [_Row(node, table, record) for node, table in tables for record in table.records],
        lambda row: () if row.table.parts is None else row.table.parts(row.record),
        attention=lambda row: row.table.attention(row.record),
    )


# ---- options -------------------------------------------------------------------------------------


#: A context with one node.
OpenedNode: TypeAlias = "contextlib.AbstractContextManager[NodeView]"
#: A context with a node, or with those of documents.
Opened: TypeAlias = "contextlib.AbstractContextManager[NodeView | NodesView]"


@contextlib.contextmanager
def _open(
    node_choice: options.NodeChoice,
    selector: Selector,
    driver: options.DriverChoice,
    document: str | None,
    gpus: tuple[int, ...] | None = None,
) -> Iterator[NodeView | NodesView]:
    """A context with the node, the service's or a document's; or those whose documents are stdin.

    Without `gpus` the verb may write: it takes neither the service's node nor several.

    Raises:
        UsageError: An option needs a node.
        Failure: There is no document.
    """
    view_of = functools.partial(
        NodeView, selector=selector, node_choice=node_choice, gpus=gpus or ()
    )
    if document == "-" and gpus is not None:
        refuse_options_of_nodes()
        yield NodesView(view_of)
    elif document is not None:
        yield view_of(replay(document, "repairs_wanted"))
    elif gpus is not None and (asked := service()) is not None:
        yield view_of(asked)
    else:
        with driver.observe(node_choice) as observer:
            yield view_of(observer)


#: Adds the options of a node, its driver, a selection, and --from; the command gets `opened`.
node_view_options = options.all_of(
    options.chosen_options,
    options.node_options,
    options.driver_options,
    options.from_option,
    options.group_options("opened", _open),
)
#: Adds --gpu as well; the node may be the service's.
view_options = options.all_of(node_view_options, options.gpu_option)
