"""Containers and files, as the command line names them.

A text with a slash at its start or ending in ``.cache`` is a file, so that a local file never wins
silently; everything else is POD or POD/CONTAINER, by name, UID or pattern of the shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import RegionError, open_region
from libhamiregion.text import printable

from . import options
from .failures import DONE, FAILED, Failure, sentence
from .format import Names, names_of, some

if TYPE_CHECKING:
    from collections.abc import Callable

    from libhamiregion import Layout, Region
    from libhamiregion.node import Container, Node

    from .options import NodeChoice


@attrs.frozen
class Targets:
    """Files, pods and containers as they were typed.

    Attributes:
        texts: The words.
        namespace: Namespace of the pods, a pattern; None means all.
        takes_all: Whether a text may mean several containers.
        layout: Layout of the files; None to find it out.
        node_choice: Where containers are.
    """

    texts: tuple[str, ...]
    namespace: str | None
    takes_all: bool
    layout: Layout | None
    node_choice: NodeChoice

    def paths(self) -> list[str]:
        """The files of the regions.

        Raises:
            UsageError: A text means several containers, and that was not asked for.
            Failure: A text means no container that has a region.
        """
        if all(map(_is_file, self.texts)):
            return list(self.texts)
        with self.node_choice.open() as node:
            node.refresh(processes=False)
            if node.root_problem is not None:
                raise Failure(node.root_problem)
            found: list[str] = []
            for text in self.texts:
                found += [text] if _is_file(text) else self._of_pod(node, text)
        return found

    def for_each(
        self, act: Callable[[Region], Any], *, writable: bool = False, only_one: bool = False
    ) -> int:
        """Do something with each region; if there are several, a failure is a line on stderr.

        Args:
            act: Gets the region, which is closed afterwards.
            writable: Whether to open it for writing.
            only_one: Whether there must be only one.

        Returns:
            The exit code.

        Raises:
            UsageError: There are several, and only one is possible.
        """
        paths, code = self.paths(), DONE
        if only_one and len(paths) > 1:
            raise click.UsageError("--watch shows one region; leave --all out.")
        for path in paths:
            try:
                with open_region(path, writable=writable, layout=self.layout) as region:
                    act(region)
            except (RegionError, OSError, click.ClickException) as error:
                if len(paths) == 1:
                    raise
                code = FAILED
                said = error.message if isinstance(error, click.ClickException) else sentence(error)
                click.echo(f"Error: {printable(said)}", err=True)
        return code

    def _of_pod(self, node: Node, text: str) -> list[str]:
        from libhamiregion.node import Selector

        pod, _, container = text.partition("/")
        selector = Selector(namespace=self.namespace, pod=pod, container=container or None)
        chosen = [each for each in node.containers if selector.matches(each)]
        if not chosen:
            there = {_words(each) for each in node.containers}
            where = "" if self.namespace is None else f" in namespace {self.namespace}"
            raise Failure(f"there is no pod {text}{where}; there is {some(sorted(there))}")
        found = {each.region_path: _words(each) for each in chosen if each.region is not None}
        if not found:
            missing = chosen[0].missing
            why = "" if missing is None else f": {missing.message}"
            raise Failure(f"{_words(chosen[0])} has no region{why}")
        if len(found) > 1 and not self.takes_all:
            names = "".join(f"\n  {printable(each)}" for each in sorted(found.values()))
            raise click.UsageError(
                f"{text} is {len(found)} containers; name one of them, with -n for its namespace,"
                f" or add --all:{names}"
            )
        return [path for path in found if path is not None]


def _words(container: Container) -> str:
    return Names(**names_of(container)).path_words or "a container without a name"


def _is_file(text: str) -> bool:
    return text.startswith("/") or text.endswith(".cache")


def _targets(
    texts: str | tuple[str, ...], namespace: str | None, all_namespaces: bool, **choice: Any
) -> Targets:
    texts = texts if isinstance(texts, tuple) else (texts,)
    return Targets(texts, None if all_namespaces else namespace, **choice)


_PARTS = ("texts", "namespace", "all_namespaces", "takes_all", "layout", "node_choice")


def target_options(*, several: bool = False) -> Callable[[options.Command], options.Command]:
    """Add TARGET and its options; the command gets `targets`, a `Targets`."""
    return options.all_of(
        click.argument(
            "texts",
            metavar="TARGET..." if several else "TARGET",
            nargs=-1 if several else 1,
            required=True,
        ),
        options.option("--namespace", "-n", metavar="NAME", group="Target"),
        options.option("--all-namespaces", "-A", "all_namespaces", is_flag=True, group="Target"),
        options.option("--all", "takes_all", is_flag=True, group="Target"),
        options.option("--layout", group="Target", **options.LAYOUT),
        options.directory_options,
        options.group_options("targets", _PARTS, _targets),
    )
