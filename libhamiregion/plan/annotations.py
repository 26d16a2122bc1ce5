"""Limits that pods ask for by their annotations, as rules of a plan.

    hamiregion.io/memory-limit: "6GiB"          every container of the pod, every device
    hamiregion.io/memory-limit.0: "6GiB"        device 0 of every container
    hamiregion.io/train.memory-limit: "6GiB"    the container `train`
    hamiregion.io/train.memory-limit.0: "6GiB"  its device 0

`sm-limit` and `priority` likewise; a priority has no device. What is further down in this list
overrides what is above it.
"""

from __future__ import annotations

import difflib
import glob
import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.node.daemon_names import pod_uids
from libhamiregion.node.selector import Selector
from libhamiregion.text import printable

from .limit_plan import LimitField, LimitPlan, Rule, Setting, parse_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ANNOTATION_PREFIX: Final = "hamiregion.io/"
_FIELDS: Final = {
    "memory-limit": LimitField.MEMORY_LIMIT,
    "sm-limit": LimitField.SM_LIMIT,
    "priority": LimitField.PRIORITY,
}
# A container's name has no dot, so the parts of a key cannot be confused.
_KEY: Final = re.compile(
    r"(?:(?P<container>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)\.)?"
    r"(?P<field>memory-limit|sm-limit|priority)"
    r"(?:\.(?P<device>[0-9]{1,2}))?\Z"
)
_CONTAINER_KINDS: Final = ("initContainers", "containers", "ephemeralContainers")
_SHOWN: Final = 80


@attrs.frozen
class AnnotatedPod:
    """A pod with what it asks for.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uids: The UIDs under which the node knows it.
        containers: The names of its containers, of all kinds.
        annotations: Those of this library, without the prefix.
    """

    namespace: str
    name: str
    uids: tuple[str, ...]
    containers: tuple[str, ...]
    annotations: Mapping[str, str]


@attrs.frozen
class AnnotationPlan:
    """What the annotations of pods come to.

    Attributes:
        plan: A rule for each annotation.
        errors: For each pod with a bad annotation (``namespace/pod``, escaped) what is wrong. The
            plan has no rule for such a pod.
        held: The UIDs of those pods: they are to be left as they are.
    """

    plan: LimitPlan
    errors: Mapping[str, str]
    held: frozenset[str]


def annotated_pod(item: Any) -> AnnotatedPod | None:
    """A pod as the API lists it; None if it is no pod, or asks for nothing.

    Args:
        item: A pod's JSON object.
    """
    metadata = _dict(_dict(item).get("metadata"))
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not (isinstance(namespace, str) and isinstance(name, str)):
        return None
    annotations = _dict(metadata.get("annotations"))
    ours = {
        key.removeprefix(ANNOTATION_PREFIX): text
        for key, text in annotations.items()
        if key.startswith(ANNOTATION_PREFIX) and isinstance(text, str)
    }
    uids = pod_uids(metadata)
    if not ours or not uids:
        return None
    spec = _dict(_dict(item).get("spec"))
    containers = tuple(
        container["name"]
        for kind in _CONTAINER_KINDS
        for container in (spec.get(kind) or ())
        if isinstance(container, dict) and isinstance(container.get("name"), str)
    )
    return AnnotatedPod(namespace, name, uids, containers, ours)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def plan_of_pods(pods: Iterable[AnnotatedPod]) -> AnnotationPlan:
    """What the annotations of these pods come to.

    A bad annotation concerns its pod only: no rule is made of any of its annotations, and the pod
    is held as it is.
    """
    rules: list[Rule] = []
    errors: dict[str, str] = {}
    held: set[str] = set()
    for pod in sorted(pods, key=lambda each: (each.namespace, each.name)):
        found, wrong = _rules(pod)
        if wrong:
            errors[printable(f"{pod.namespace}/{pod.name}", 2 * 253)] = "; ".join(wrong)
            held.update(pod.uids)
        else:
            rules += found
    return AnnotationPlan(LimitPlan(tuple(rules)), errors, frozenset(held))


@attrs.frozen
class _Wish:
    container: str | None
    device: str | None
    setting: Setting

    @property
    def rank(self) -> tuple[bool, bool]:
        """The more exactly it says what it means, the later its rule."""
        return self.container is not None, self.device is not None


def _rules(pod: AnnotatedPod) -> tuple[list[Rule], list[str]]:
    wishes = []
    wrong = []
    for key, text in sorted(pod.annotations.items()):
        try:
            wishes.append(_wish(pod, key, text))
        except ValueError as error:
            wrong.append(f"{ANNOTATION_PREFIX}{printable(key, _SHOWN)}: {error}")
    wishes.sort(key=lambda wish: wish.rank)
    name = printable(f"annotations of {pod.namespace}/{pod.name}", 2 * 253)
    rules = [
        Rule(
            Selector(
                pod_uid=uid,
                container=None if wish.container is None else glob.escape(wish.container),
                device=wish.device,
            ),
            (wish.setting,),
            name,
        )
        for uid in pod.uids
        for wish in wishes
    ]
    return rules, wrong


def _wish(pod: AnnotatedPod, key: str, text: str) -> _Wish:
    match = _KEY.match(key)
    if match is None:
        raise ValueError(f"unknown{_suggestion(key)}")
    field = _FIELDS[match["field"]]
    container, device = match["container"], match["device"]
    if container is not None and container not in pod.containers:
        names = ", ".join(printable(name, _SHOWN) for name in pod.containers[:10])
        raise ValueError(f"the pod has no container {container} (it has {names or 'none'})")
    if device is not None:
        if field is LimitField.PRIORITY:
            raise ValueError("a priority is of the whole container; leave out the device")
        if int(device) >= DEVICE_CAPACITY or (len(device) > 1 and device[0] == "0"):
            raise ValueError(f"a device is 0 to {DEVICE_CAPACITY - 1}, not {device}")
    return _Wish(container, device, Setting(field, parse_value(field, text)))


def _suggestion(key: str) -> str:
    field = next((part for part in key.split(".") if not part.isdigit()), key)
    close = difflib.get_close_matches(field[:_SHOWN], _FIELDS, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are [CONTAINER.]{{{','.join(_FIELDS)}}}[.DEVICE]"
