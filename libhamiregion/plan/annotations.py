"""Limits that pods ask for by their annotations, as rules of a plan.

    hamiregion.io/memory-limit: "6GiB"          every container of the pod, every device
    hamiregion.io/memory-limit.0: "6GiB"        device 0 of every container
    hamiregion.io/train.memory-limit: "6GiB"    the container `train`
    hamiregion.io/train.memory-limit.0: "6GiB"  its device 0

`sm-limit` and `priority` likewise; a priority has no device. What is further down in this list
overrides what is above it. Whoever may annotate a pod could raise its limits, so annotations have a
maximum: by default the limits that the container was given, and the urgency of before.
"""

from __future__ import annotations

import glob
import re
from typing import TYPE_CHECKING, Final

import attrs

from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.observation.selector import Selector
from libhamiregion.text import printable
from libhamiregion.units import typed_memory_limit

from .node_pods import ANNOTATION_PREFIX
from .plan import DEVICE_FIELDS, LIMIT_FIELDS, LimitPlan, Limits, Rule
from .reconcile import PlanSource, SourceReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .node_pods import NodePod, NodePods

_FIELDS: Final = {field.replace("_", "-"): field for field in LIMIT_FIELDS}
_KNOWN: Final = f"[CONTAINER.]{{{','.join(_FIELDS)}}}[.DEVICE]"
# A container's name has no dot, so the parts of a key cannot be confused.
_KEY: Final = re.compile(
    r"(?:(?P<container>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)\.)?"
    rf"(?P<field>{'|'.join(_FIELDS)})"
    r"(?:\.(?P<device>0|[1-9][0-9]?))?\Z"
)
_KEY_LIMIT: Final = 80
_PROBLEM_LIMIT: Final = 800
#: As `Rule.maximum_percent`.
DEFAULT_MAXIMUM_PERCENT: Final = 100


class PodAnnotations(PlanSource):
    """The ``hamiregion.io/…`` annotations of a node's pods as a source of a plan.

    The last known pods stay while the API cannot be reached.

    Threads: `read` is for one at a time; the others may be called from any.

    Args:
        pods: The watch of the node's pods, to be started by the caller; closed with this.
        maximum_percent: The most that an annotation may ask for, see `Rule`; None allows any.

    Attributes:
        pods: As given.

    Shell: ``kubectl get pods -A --watch --field-selector spec.nodeName=NODE``.
    """

    def __init__(
        self, pods: NodePods, *, maximum_percent: int | None = DEFAULT_MAXIMUM_PERCENT
    ) -> None:
        self.pods = pods
        self._maximum_percent = maximum_percent
        self._annotated: list[NodePod] | None = None
        self._reading = SourceReading(None)

    def when_changed(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from the thread that watches, after each change."""
        self.pods.when_changed(wake)

    def read(self) -> SourceReading:
        """Return the rules of all pods with valid annotations; no plan before the first list."""
        _, pods = self.pods.known()
        if pods is not None:
            found = [pod for pod in pods.values() if pod.annotations]
            if found != self._annotated:
                # The same pods give the same plan.
                self._annotated = found
                self._reading = plan_of_pods(found, self._maximum_percent)
        error = self.pods.error
        problems = {} if error is None else {"kubernetes": str(error)}
        reading = self._reading
        return SourceReading(reading.plan, {**problems, **reading.problems}, reading.held)

    def close(self) -> None:
        """End the watch; may be called again."""
        self.pods.close()


def plan_of_pods(
    pods: Iterable[NodePod], maximum_percent: int | None = DEFAULT_MAXIMUM_PERCENT
) -> SourceReading:
    """Make rules of the annotations of these pods.

    A bad annotation concerns its pod only: no rule is made of any of its annotations, the problem
    is named by ``namespace/pod``, and the pod is held as it is.
    """
    rules: list[Rule] = []
    problems: dict[str, str] = {}
    held: set[str] = set()
    for pod in sorted(pods, key=lambda each: (each.namespace, each.name)):
        found, wrong = _rules(pod)
        if wrong:
            name = printable(f"{pod.namespace}/{pod.name}", 2 * 253)
            problems[name] = printable("; ".join(wrong), _PROBLEM_LIMIT)
            held.add(pod.uid)
        else:
            rules += [attrs.evolve(each, maximum_percent=maximum_percent) for each in found]
    return SourceReading(LimitPlan(tuple(rules)), problems, frozenset(held))


def _rules(pod: NodePod) -> tuple[list[Rule], list[str]]:
    rules = []
    wrong = []
    name = printable(f"annotations of {pod.namespace}/{pod.name}", 2 * 253)
    for key, text in sorted(pod.annotations.items()):
        try:
            select, limits = _request(key, text)
        except ValueError as error:
            wrong.append(f"{ANNOTATION_PREFIX}{printable(key, _KEY_LIMIT)}: {error}")
        else:
            rules.append(Rule(attrs.evolve(select, pod_uid=pod.uid), limits, name))
    # The more exact a rule, the later its place.
    rules.sort(key=lambda r: (r.select.container is not None, r.select.device is not None))
    return rules, wrong


def _request(key: str, text: str) -> tuple[Selector, Limits]:
    match = _KEY.match(key)
    if match is None:
        raise ValueError(f"unknown; known are {_KNOWN}")
    field, container, device = _FIELDS[match["field"]], match["container"], match["device"]
    if device is not None and field not in DEVICE_FIELDS:
        raise ValueError(f"a {field} is of the whole container; leave out the device")
    if device is not None and int(device) >= DEVICE_CAPACITY:
        raise ValueError(f"a device is 0 to {DEVICE_CAPACITY - 1}, not {device}")
    select = Selector(
        container=None if container is None else glob.escape(container), device=device
    )
    if field == "memory_limit":
        typed_memory_limit(text, force="")
    return select, Limits(**{field: text})
