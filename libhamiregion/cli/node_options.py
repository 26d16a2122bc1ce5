"""Options of the verbs that are about a node, and the node that they choose."""

from __future__ import annotations

from typing import Any

import click

from libhamiregion.node.names import ChainedNames, DockerNames, PodLogNames
from libhamiregion.node.node import Node
from libhamiregion.node.selector import Selector

from . import options

root_option = click.option(
    "--root",
    "roots",
    multiple=True,
    type=options.PATH,
    metavar="DIR",
    help="Only the <podUID>_<container> directories below DIR, which may be a pattern; may be given"
    " again.  [default: $HOOK_PATH/containers, else HAMi's and volcano's, and regions that"
    " processes map elsewhere]",
)
pod_logs_option = click.option(
    "--pod-logs",
    type=options.PATH,
    default="/var/log/pods",
    show_default=True,
    metavar="DIR",
    help="Where kubelet keeps the pods' logs, which tell the pods' names.",
)
library_option = click.option(
    "--library",
    type=options.PATH,
    metavar="FILE",
    help="The driver's libnvidia-ml.so.1, where the loader does not find it.",
)
_pod_option = click.option("--pod", metavar="PATTERN", help="Only pods of this name or UID.")
_namespace_option = click.option(
    "--namespace", metavar="PATTERN", help="Only pods of such namespaces."
)
_container_option = click.option(
    "--container", metavar="PATTERN", help="Only containers of this name or id."
)
_device_option = click.option(
    "--device", metavar="N|PATTERN", help="Only devices of this index or uuid."
)


def selector_options(command: Any) -> Any:
    """Add --namespace, --pod, --container and --device; see `selector`."""
    for option in (_device_option, _container_option, _pod_option, _namespace_option):
        command = option(command)
    return command


def selector(
    namespace: str | None, pod: str | None, container: str | None, device: str | None
) -> Selector:
    """What those four options choose."""
    return Selector(namespace=namespace, pod=pod, container=container, device=device)


def open_node(roots: tuple[str, ...], proc: str, pod_logs: str, *, outside: bool = False) -> Node:
    """Make the node that --root, --proc and --pod-logs choose; the caller closes it.

    Who names directories means those: regions elsewhere count only if none are named.

    Args:
        roots: As typed.
        proc: As typed.
        pod_logs: As typed.
        outside: Whether to look for regions elsewhere if no roots are given.
    """
    names = ChainedNames([PodLogNames(pod_logs), DockerNames()])
    return Node(roots or None, proc=proc, names=names, outside=outside and not roots)
