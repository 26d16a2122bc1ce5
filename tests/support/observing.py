"""What one observation of a node shows of its containers."""

from __future__ import annotations

from libhamiregion.node import ContainerDetails, Node, Observer


def details(node: Node) -> tuple[ContainerDetails, ...]:
    """The containers of a node, observed now, with every slot proved anew."""
    return tuple(Observer(node, anew=True).observe().details())
