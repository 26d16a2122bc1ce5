"""Old names of `options`, for verbs that have not moved yet."""

from __future__ import annotations

from typing import Any

import click

from libhamiregion.node import Node, Selector

from .options import NodeChoice, library_option, pod_logs_option, root_option

__all__ = ["library_option", "open_node", "pod_logs_option", "root_option", "selector"]


def selector_options(command: Any) -> Any:
    for name in ("device", "container", "pod", "namespace"):
        command = click.option(f"--{name}", metavar="PATTERN", help=f"Only such a {name}.")(command)
    return command


def selector(
    namespace: str | None, pod: str | None, container: str | None, device: str | None
) -> Selector:
    """Make a selector."""
    return Selector(namespace=namespace, pod=pod, container=container, device=device)


def open_node(roots: tuple[str, ...], proc: str, pod_logs: str, *, outside: bool = False) -> Node:
    """Make a node."""
    return NodeChoice(roots, outside, proc, pod_logs).open()
