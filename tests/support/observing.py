"""What one observation of a node shows of its containers."""

import attrs

from libhamiregion.node import ContainerDetails, Node, Observer
from libhamiregion.observation.model import Observation


def details(node: Node) -> tuple[ContainerDetails, ...]:
    """The containers of a node, observed now, with every slot proved anew."""
    return tuple(Observer.for_command(node).observe().details())


def with_older_sample(seen: Observation) -> Observation:
    """An observation with the same sample, taken an hour before: all processes are younger."""
    sample = attrs.evolve(seen.sample, taken_s=seen.sample.taken_s - 3600)
    return attrs.evolve(seen, sample=sample)
