"""The nodes of a verb: this one, the service's in a pod, or those of documents."""

from __future__ import annotations

import contextlib
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

from . import options
from .failures import Failure, failures_of
from .node_page import NodeView, Replay
from .output import show, write_json
from .tables import Column, Page, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from libhamiregion.node import Observation, Selector


# How long a program may take that writes documents into a pipe.
_SILENCE_S = 30


# ---- one node ------------------------------------------------------------------------------------


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


def _read(path: str) -> Replay:
    """Read an observation that `hamiregion observe` has written.

    Raises:
        Failure: The file is none.
    """
    from libhamiregion.observation.json import MAX_BYTES, DocumentError, from_json

    with failures_of(DocumentError, about=f"{path}: "):
        return Replay(from_json(read_bounded(path, MAX_BYTES, silence_s=_SILENCE_S)))


# ---- several nodes -------------------------------------------------------------------------------


@attrs.frozen
class NodesView:
    """The nodes whose documents come on stdin.

    Attributes:
        selector: Selects containers and devices.
        node_choice: Says that no node was chosen.
        gpus: Selects devices by the driver's index of their GPU; empty for all.
    """

    selector: Selector
    node_choice: options.NodeChoice
    gpus: tuple[int, ...] = ()

    def show(
        self, page_of: Callable[[NodeView], Page], interval_s: float | None, as_json: bool
    ) -> None:
        """Show the pages that a function makes of the nodes as one, with a column NODE.

        Raises:
            Failure: No node is shown, or a document cannot be read.
        """
        del interval_s  # refused with --from
        pages: list[tuple[str, Page]] = []
        broken = []
        for node, observation in _documents():
            if isinstance(observation, Exception):
                broken.append(f"{node}: {observation}")
                continue
            view = NodeView(Replay(observation), self.selector, self.node_choice, self.gpus)
            page = page_of(view)
            if as_json:
                write_json(page.schema, page.data, node=node)
            # A selection is of some node; a directory that cannot be listed is this node's.
            if observation.root_problem is not None:
                broken.append(f"{node}: {page.failure}")
            pages.append((node, page))
        show(_joined(pages, broken, with_tables=not as_json), as_json=False)


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
    return _read(document)


@contextlib.contextmanager
def _open_node(
    node_choice: options.NodeChoice,
    selector: Selector,
    driver: options.DriverChoice,
    document: str | None,
    gpus: tuple[int, ...] = (),
    asked: Service | None = None,
) -> Iterator[NodeView]:
    if document is not None:
        yield NodeView(replay(document, "repairs_wanted"), selector, node_choice, gpus)
    elif asked is not None:
        yield NodeView(asked, selector, node_choice, gpus)
    else:
        with driver.observe(node_choice) as observer:
            yield NodeView(observer, selector, node_choice, gpus)


def _open_view(
    node_choice: options.NodeChoice,
    selector: Selector,
    driver: options.DriverChoice,
    document: str | None,
    gpus: tuple[int, ...],
) -> Opened:
    """Open the node, the service's or a document's; or the nodes whose documents come on stdin.

    Raises:
        UsageError: An option needs a node.
        Failure: There is no document.
    """
    if document != "-":
        asked = service() if document is None else None
        return _open_node(node_choice, selector, driver, document, gpus, asked)
    refuse_options_of_nodes()
    return contextlib.nullcontext(NodesView(selector, node_choice, gpus))


_options = options.all_of(options.chosen_options, options.node_options, options.driver_options)
#: Adds the options of a node, its driver, a selection, and --from; the command gets `opened`.
node_view_options = options.all_of(
    _options, options.from_option, options.group_options("opened", _open_node)
)
#: Adds --gpu and --from as well; the node may be the service's.
view_options = options.all_of(
    _options,
    options.gpu_option,
    options.from_option,
    options.group_options("opened", _open_view),
)
