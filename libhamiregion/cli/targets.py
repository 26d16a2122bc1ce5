"""Containers and files that a verb about regions is for, as the command line names them.

A text with a slash at its start or ending in ``.cache`` is a file, so that a local file never wins
silently; everything else is POD or POD/CONTAINER, by name, UID or pattern of the shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import RegionError
from libhamiregion.text import printable

from . import options
from .failures import DONE, FAILED, Failure, sentence
from .format import Names, names_of, some

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libhamiregion.node import Container, Node

    from .options import NodeChoice


@attrs.frozen
class Targets:
    """What was named, and where to look for it.

    Attributes:
        texts: Files, pods and containers as they were typed.
        namespace: Namespace of the pods, a pattern; None means all.
        takes_all: Whether a text may mean several containers.
        node_choice: Where containers are.
    """

    texts: tuple[str, ...]
    namespace: str | None
    takes_all: bool
    node_choice: NodeChoice

    def paths(self) -> list[str]:
        """The files of the regions.

        Raises:
            UsageError: A text means several containers, and that was not asked for.
            Failure: A text means none that has a region.
        """
        found: list[str] = []
        pods = [text for text in self.texts if not _is_file(text)]
        if not pods and self.namespace is not None:
            raise click.UsageError("-n is the namespace of a POD, and only files are named.")
        if not pods:
            return list(self.texts)
        with self.node_choice.open() as node:
            node.refresh(processes=False)
            if node.root_problem is not None:
                raise Failure(node.root_problem)
            for text in self.texts:
                found += [text] if _is_file(text) else self._of_pod(node, text)
        return found

    def only_path(self) -> str:
        """The file of the only region.

        Raises:
            UsageError: There are several.
        """
        path, *others = self.paths()
        if others:
            raise click.UsageError("--watch shows one region; leave --all out.")
        return path

    def for_each(self, act: Callable[[str], Any]) -> int:
        """Do something with each file; see the function `for_each`."""
        return for_each(self.paths(), act)

    def _of_pod(self, node: Node, text: str) -> list[str]:
        from libhamiregion.node import Selector

        pod, _, container = text.partition("/")
        selector = Selector(namespace=self.namespace, pod=pod, container=container or None)
        chosen = [each for each in node.containers if selector.matches(each)]
        if not chosen:
            there = {_words(node, each) for each in node.containers}
            where = "" if self.namespace is None else f" in namespace {self.namespace}"
            raise Failure(f"there is no pod {text}{where}; there is {some(sorted(there))}")
        paths = [each.region_path for each in chosen if each.region is not None]
        if not paths:
            missing = chosen[0].missing
            why = "" if missing is None else f": {missing.message}"
            raise Failure(f"{_words(node, chosen[0])} has no region{why}")
        if len(paths) > 1 and not self.takes_all:
            names = sorted(_words(node, each) for each in chosen if each.region is not None)
            raise click.UsageError(
                f"{text} is {len(paths)} containers; name one of them, with -n for its namespace,"
                f" or add --all:\n  " + "\n  ".join(map(printable, names))
            )
        return [path for path in paths if path is not None]


def for_each(paths: Sequence[str], act: Callable[[str], Any]) -> int:
    """Do something with each file; one of several that fails is a line on stderr.

    Returns:
        The exit code.
    """
    code = DONE
    for path in paths:
        try:
            act(path)
        except (RegionError, OSError, click.ClickException) as error:
            if len(paths) == 1:
                raise
            code = FAILED
            said = error.message if isinstance(error, click.ClickException) else sentence(error)
            click.echo(f"Error: {printable(said)}", err=True)
    return code


def _words(node: Node, container: Container) -> str:
    return Names(**names_of(node, container)).path_words or "a container without a name"


def _is_file(text: str) -> bool:
    return text.startswith("/") or text.endswith(".cache")


def _make(
    texts: str | tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    takes_all: bool,
    node_choice: NodeChoice,
) -> Targets:
    if all_namespaces and namespace is not None:
        raise click.UsageError("-n and -A contradict each other.")
    return Targets(
        texts if isinstance(texts, tuple) else (texts,), namespace, takes_all, node_choice
    )


def target_options(*, several: bool = False) -> Callable[[options.Command], options.Command]:
    """Add TARGET and what finds it; the command gets `targets`, a `Targets`."""
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
        options.directory_options,
        options.group_options(
            "targets", ("texts", "namespace", "all_namespaces", "takes_all", "node_choice"), _make
        ),
    )
