"""What one observation of a node shows of its containers."""

from __future__ import annotations

import attrs

from libhamiregion.node import ContainerDetails, Node, Observer
from libhamiregion.observation.model import Observation


def details(node: Node) -> tuple[ContainerDetails, ...]:
    """The containers of a node, observed now, with every slot proved anew."""
    return tuple(Observer(node, anew=True).observe().details())


def with_older_sample(seen: Observation) -> Observation:
    """The same, but the driver was asked an hour before: each process is younger than its sample."""
    assert seen.sample is not None
    sample = attrs.evolve(seen.sample, taken_s=seen.sample.taken_s - 3600)
    return attrs.evolve(seen, sample=sample)
