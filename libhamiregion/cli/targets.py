"""Containers and files, as the command line names them: which regions a verb is about."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import Layout, Region, RegionError, open_region
from libhamiregion.text import printable

from . import options
from .failures import DONE, FAILED, PROBLEMS, Failure, Refused, failure
from .names import Names, containers_of, is_file, name_texts, names_of, unknown_name
from .output import DRY_RUN
from .tables import Lines, Page

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from libhamiregion.node import Container, Node, Observation

#: Begins a line with a command that takes an edit back.
UNDO = "undo: "


@attrs.frozen
class Place:
    """A region's file, and whose it is.

    Attributes:
        path: The file.
        name: The container's name, escaped; None for a file that was named itself.
        names: The parts of it.
        position: Its number among several; None if it is the only one.
    """

    path: str
    name: str | None = None
    names: Names = attrs.field(factory=Names)
    position: int | None = None

    @property
    def data(self) -> dict[str, str | None]:
        """Whose region it is, for --json; nothing of a file that was named."""
        keys = () if self.name is None else ("namespace", "pod", "container")
        return {key: getattr(self.names, key) for key in keys}

    @property
    def label(self) -> str:
        """Whose region it is, at the beginning of a sentence about one of several; else empty."""
        return "" if self.position is None else f"{self.name or self.path}: "

    @property
    def heading(self) -> str:
        """The same above a table."""
        if self.position is None:
            return ""
        return ("\n" if self.position else "") + f"{printable(self.label).rstrip()}\n"

    def done(
        self, schema: str, region: Region, lines: Sequence[str], *, dry_run: bool, **data: Any
    ) -> Page:
        """Show what a command has done in the region, or would have done."""
        about = {**self.data, "path": region.path, "layout": region.layout, "dry_run": dry_run}
        said = [*lines, DRY_RUN] if dry_run else lines
        said = [line if line.startswith(UNDO) else self.label + line for line in said]
        return Page(schema, about | data, [Lines(said)])


@attrs.frozen
class Targets:
    """Files, pods and containers as they were typed.

    Attributes:
        texts: The words; none means all containers.
        namespace: Namespace of the pods, a pattern; None means all.
        takes_all: Whether a text may mean several containers.
        layout: Layout of the files; None to find it out.
        node_choice: Where containers are.
    """

    texts: tuple[str, ...]
    namespace: str | None
    takes_all: bool
    layout: Layout | None
    node_choice: options.NodeChoice

    @contextlib.contextmanager
    def node(self) -> Iterator[Node]:
        """A context with the node, and the containers that it has now."""
        with self.node_choice.open() as node:
            node.refresh(processes=False)
            yield node

    def places(self, *, writable: bool = False) -> list[Place]:
        """The files of the regions, with their containers.

        Args:
            writable: Whether they are to be changed: then a name has one reading.

        Raises:
            UsageError: A text means several containers, and that was not asked for.
            Failure: A text means no container that has a region.
        """
        if self.texts and all(map(is_file, self.texts)):
            return self._all_named((), (), writable)
        with self.node() as node:
            if node.root_problem is not None:
                raise Failure(node.root_problem)
            present = {each for each in node.containers if each.region is not None}
            return self._all_named(node.containers, present, writable)

    def for_each(
        self, act: Callable[[Region, Place], Any], *, writable: bool = False, only_one: bool = False
    ) -> int:
        """Do something with each region; if there are several, a failure is a line on stderr.

        Args:
            act: Gets the region, which is closed afterwards, and its place.
            writable: Whether to open it for writing.
            only_one: Whether there must be only one.

        Returns:
            The exit code.

        Raises:
            UsageError: There are several, and only one is possible.
        """
        places, code = self.places(writable=writable), DONE
        if only_one and len(places) > 1:
            raise click.UsageError("--watch shows one region; name one container.")
        for place in places:
            try:
                with open_region(place.path, writable=writable, layout=self.layout) as region:
                    act(region, place)
            except BrokenPipeError:
                raise
            except (RegionError, OSError, click.ClickException) as error:
                said = error if isinstance(error, click.ClickException) else failure(error)
                if place.name is not None and isinstance(said, Failure):
                    said = type(said)(f"{place.name}: {said.message}")
                if len(places) == 1:
                    raise said from None
                is_refused = isinstance(said, Refused) and code != FAILED
                code = PROBLEMS if is_refused else FAILED
                click.echo(f"Error: {printable(said.message)}", err=True)
        return code

    def places_in(self, observation: Observation) -> list[Place]:
        """The regions of a document that are meant, as `places`.

        Raises:
            UsageError: A file was named, or a text means several containers.
            Failure: A text means no container that has a region.
        """
        for text in self.texts:
            if is_file(text):
                raise click.UsageError(f"{text} is a file, and --from has a document's containers")
        read = zip(observation.table.regions.code, observation.containers, strict=True)
        present = {each for code, each in read if code == 0}
        return self._all_named(observation.all_containers, present, writable=False)

    def _all_named(
        self, containers: Sequence[Container], present: Collection[Container], writable: bool
    ) -> list[Place]:
        found = [
            place
            for text in self.texts or (None,)
            for place in (
                [Place(text)]
                if text is not None and is_file(text)
                else self._named(containers, present, text, writable)
            )
        ]
        if len(found) > 1:
            return [attrs.evolve(each, position=number) for number, each in enumerate(found)]
        return found

    def _named(
        self,
        containers: Sequence[Container],
        present: Collection[Container],
        text: str | None,
        writable: bool,
    ) -> list[Place]:
        readings = containers_of(text, self.namespace, containers)
        chosen = list(dict.fromkeys(each for reading in readings for each in reading))
        if not chosen:
            raise Failure(unknown_name(text, self.namespace, containers))
        names = name_texts(containers)
        found = [
            Place(each.region_path, names[each], Names(**names_of(each)))
            for each in chosen
            if each in present and each.region_path is not None
        ]
        found.sort(key=lambda place: place.names.order)
        for each in chosen if found else ():
            if each not in present:
                click.echo(f"Note: {names[each]} has no region yet", err=True)
        if not found:
            missing = chosen[0].missing
            why = "" if missing is None else f": {missing.message}"
            raise Failure(f"{names[chosen[0]]} has no region{why}")
        is_shown = not writable and len(readings) == len(chosen)
        if len(found) > 1 and not self.takes_all and not is_shown:
            listed = "".join(f"\n  {each.name}" for each in found)
            raise click.UsageError(
                f"{text} is {len(found)} containers; name one of them, or add --all:{listed}"
            )
        return found


def _targets(
    texts: str | tuple[str, ...] | None,
    namespace: str | None,
    all_namespaces: bool,
    takes_all: bool,
    layout: Layout | None,
    node_choice: options.NodeChoice,
) -> Targets:
    if texts is None and not takes_all:
        raise click.UsageError("Missing TARGET: name a container, or add --all for all of them.")
    words = texts if isinstance(texts, tuple) else (() if texts is None else (texts,))
    namespace = None if all_namespaces else namespace
    return Targets(words, namespace, takes_all, layout, node_choice)


def target_options(
    *, several: bool = False, reads: bool = False
) -> Callable[[options.Command], options.Command]:
    """Add TARGET and its options; the command gets `targets`, a `Targets`.

    Args:
        several: Whether several can be given.
        reads: Whether ``--all`` alone means all containers. An edit of ``--all $POD`` fails if the
            variable is empty.
    """
    many = "TARGET..." if several else "TARGET"
    return options.all_of(
        click.argument(
            "texts",
            metavar=f"[{many}]" if reads else many,
            nargs=-1 if several else 1,
            required=not reads,
        ),
        options.option("--namespace", "-n", metavar="NAME", group="Target"),
        options.option("--all-namespaces", "-A", "all_namespaces", is_flag=True, group="Target"),
        options.option("--all", "takes_all", is_flag=True, group="Target"),
        options.option("--layout", group="Target", **options.LAYOUT),
        options.directory_options,
        options.group_options("targets", _targets),
    )
