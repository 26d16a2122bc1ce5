"""How states, names and counts are called; the same words on a terminal and in a pipe."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion import Effect, ProcessStatus, RegionError
from libhamiregion.units import MAX_SIZE_BYTES

from .tables import NAME, NOTHING, ROOMY, Column

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from libhamiregion import DeviceUsage
    from libhamiregion.node import Container, Gap, Node, Observation, Selector
    from libhamiregion.node.observation import GapKind

_SHORT_ID = 12
_GAPS_SHOWN = 3
# A process of this library that is none of the container's signs with a number that is no pid.
_ABOVE_EVERY_PID = 2**30
OWN_WORDS = "a tool with libhamiregion"

_STATUSES = {status.value: status.name.lower() for status in ProcessStatus}
_EFFECTS = {
    Effect.IMMEDIATE: "at once, also in running processes",
    Effect.NEW_PROCESSES: "for processes started from now on",
    Effect.STOPS_LAUNCHES: "at once, and running processes without a limit so far stop for good",
    Effect.IF_SM_LIMITED: "up to HAMi 2.9; from 2.10 on not, as no device has an SM limit",
}
_INCOMPLETE = (
    "not all of the node's processes can be seen from here, so states may be unknown; run as root"
    " in the host's pid namespace"
)


def status_word(status: int) -> str:
    """Name a slot's status."""
    return _STATUSES.get(status, f"status {status}")


def lock_word(owner_pid: int, dead: Collection[int] = ()) -> str:
    """Name the process that has signed for a region's lock; `dead` are the pids proved dead."""
    if not owner_pid:
        return "free"
    if owner_pid >= _ABOVE_EVERY_PID:
        return "tool"
    return f"dead:{owner_pid}" if owner_pid in dead else f"pid:{owner_pid}"


def effect_words(effect: Effect) -> str:
    """Say from when on an edit holds."""
    return _EFFECTS[effect]


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things.

    >>> count(1, "process", "processes"), count(2, "process", "processes"), count(0, "device")
    ('1 process', '2 processes', '0 devices')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def age_words(seconds: int) -> str:
    """Say how long ago, in the largest unit that fits.

    >>> age_words(0), age_words(75), age_words(7200), age_words(200_000)
    ('just now', '75 s ago', '2 h ago', '2 d ago')
    """
    if seconds <= 0:
        return "just now"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def fill_ratio(device: DeviceUsage) -> float | None:
    """Used memory as a share of the limit; None without a limit, or if the sum is no size."""
    if device.memory_limit_bytes is None or device.memory_used_bytes > MAX_SIZE_BYTES:
        return None
    return device.memory_used_bytes / device.memory_limit_bytes


# ---- containers of a node ------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Names:
    """What a container is called, raw text; None is not known.

    Attributes:
        namespace: Namespace of its pod.
        pod: Name of its pod.
        pod_uid: UID of its pod.
        container: The container's name.
        container_id: Its id, as its runtime has it.
    """

    namespace: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    container: str | None = None
    container_id: str | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """A key that sorts by name, what has none last."""
        key = (self.namespace, self.pod or self.pod_uid, self.container or self.container_id)
        return tuple((part is None, part or "") for part in key)

    @property
    def pod_words(self) -> str | None:
        """``namespace/pod``, else the UID."""
        if self.pod is None or self.namespace is None:
            return self.pod or self.pod_uid
        return f"{self.namespace}/{self.pod}"

    @property
    def container_words(self) -> str | None:
        """The container's name, else the beginning of its id."""
        if self.container is None and self.container_id is not None:
            return self.container_id[:_SHORT_ID]
        return self.container

    @property
    def short_words(self) -> str | None:
        """``pod/container`` in one, without the namespace."""
        parts = (self.pod or self.pod_uid, self.container_words)
        return "/".join(part for part in parts if part) or None

    @property
    def words(self) -> str:
        """Pod and container in a sentence, raw text."""
        return f"{self.pod_words or NOTHING} {self.container_words or NOTHING}"


NAME_COLUMNS = (
    Column("CONTAINER", "short_words", NAME, on="terminal", to_width=ROOMY),
    Column("POD", "pod_words", NAME, from_width=ROOMY),
    Column("CONTAINER", "container_words", NAME, from_width=ROOMY),
)


def names_of(node: Node, container: Container) -> dict[str, Any]:
    """The fields of `Names` for a container, by the node's resolvers."""
    name = node.pod_name(container)
    container_id = container.container_id
    return {
        "namespace": None if name is None else name.namespace,
        "pod": None if name is None else name.pod,
        "pod_uid": container.pod_uid,
        "container": container.name or (None if name is None else name.container),
        "container_id": None if container_id is None else container_id.id,
    }


def node_warnings(node: Node) -> tuple[str, ...]:
    """Say which directories could not be listed, and why."""
    return tuple(
        f"{root}: {error.strerror or error}" for root, error in sorted(node.root_errors.items())
    )


def root_failure(node: Node, roots: tuple[str, ...]) -> str | None:
    """Say which directories were given, if none of them can be listed."""
    return node.root_problem if roots else None


_CONTAINERS_LISTED = 10


def selection_failure(node: Node, selector: Selector) -> str | None:
    """Say that no container is selected, and list what there is; None if one is."""
    chosen = [each for each in node.containers if selector.matches(each)]
    if chosen or not any(attrs.astuple(selector)):
        devices = [device for each in chosen for device in _devices_of(each)]
        if selector.device is None or not chosen or any(map(selector.matches_device, devices)):
            return None
        there_is = dict.fromkeys(f"{each.index} ({each.uuid or 'no uuid'})" for each in devices)
        return f"no device {selector.device} in the containers selected; there is {_list(there_is)}"
    names = sorted({Names(**names_of(node, each)).words for each in node.containers})
    return f"no container is selected; there is {_list(names)}"


def _devices_of(container: Container) -> tuple[DeviceUsage, ...]:
    with contextlib.suppress(RegionError):
        if container.region is not None:
            return container.region.snapshot().devices
    return ()


def _list(words: Collection[str]) -> str:
    shown = ", ".join(list(words)[:_CONTAINERS_LISTED])
    more = len(words) - _CONTAINERS_LISTED
    return (shown or "none") + (f" and {more} more" if more > 0 else "")


@attrs.frozen(kw_only=True)
class GapRow(Names):
    """Something that could not be looked at; what it hides is unknown.

    Attributes:
        kind: ``driver``, ``root`` or ``processes``.
        reason: Why, as one sentence.
        count: How many processes were not looked at; 1 for the driver and for a root.
    """

    kind: GapKind
    reason: str
    count: int


def gap_rows(node: Node, observation: Observation) -> list[GapRow]:
    """What could not be looked at, with the names of the container that it is about."""
    return [
        GapRow(**_names_of_gap(node, gap), kind=gap.kind, reason=gap.reason, count=gap.count)
        for gap in observation.gaps
        # What an observation has left out because of its size, the verbs look at by itself.
        if gap.kind != "slots"
    ]


def _names_of_gap(node: Node, gap: Gap) -> dict[str, Any]:
    if gap.container is not None:
        return names_of(node, gap.container)
    if gap.container_id is None:
        return {}
    return {"pod_uid": gap.container_id.pod_uid, "container_id": gap.container_id.id}


def node_notes(node: Node, gaps: Sequence[GapRow]) -> tuple[str, ...]:
    """Say what this user, in this place, cannot see.

    Args:
        node: The node.
        gaps: What could not be looked at; the driver and roots are told elsewhere.
    """
    is_complete = node.processes.is_complete
    # Where nobody's may be read, one sentence says so.
    reasons = [
        f"{each.words}: {each.reason}" if each.pod_words or each.container_words else each.reason
        for each in gaps
        if each.kind == "processes" and (is_complete or "may not be read" not in each.reason)
    ]
    more = len(reasons) - _GAPS_SHOWN
    further = (f"{more} more containers have processes that are not known",) if more > 0 else ()
    return (*(() if is_complete else (_INCOMPLETE,)), *reasons[:_GAPS_SHOWN], *further)
