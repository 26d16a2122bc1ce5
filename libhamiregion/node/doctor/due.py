"""Which containers are worth a diagnosis now: for those who diagnose every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.layouts import Layout

if TYPE_CHECKING:
    from collections.abc import Collection

    from libhamiregion.node.containers import Container
    from libhamiregion.node.matching import RegionProcesses
    from libhamiregion.node.observation import Observation

_LOW_HALF = 0xFFFFFFFF
# Every column has cells of so many bytes.
_CELL = 8
_OF_REGIONS = (
    *("code", "layout", "semaphore", "owner_pid", "priority", "recent_kernel"),
    *("first_process", "process_count", "first_device", "device_rows"),
)
_OF_SLOTS = ("pid", "host_pid", "status")
_OF_DEVICES = ("memory_limit_bytes", "sm_limit_percent")


class DueContainers:
    """Chooses the containers to diagnose: those that have changed, and a share of the others.

    A container is due when what a read and /proc tell of its slots, limits and devices has changed,
    while its lock is taken or a slot of it is being written, and where the caller says so. What
    none of this shows (a slot behind the last one, a start-up lock) is found in its turn: each
    container is due once in so many calls.

    Threads: one at a time.

    Args:
        turns: After so many calls every container was due at least once.
    """

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._turn = 0
        self._seen: dict[Container, tuple[bytes, RegionProcesses | None]] = {}
        # What the last call compared, and which containers are due while that stands.
        self._compared: tuple[object, ...] = ()
        self._unsettled: tuple[Container, ...] = ()

    def forget(self) -> None:
        """Take all containers for changed: what was chosen last has not been diagnosed."""
        self._seen.clear()
        self._compared = ()

    def choose(
        self, observation: Observation, kept: Collection[Container | None] = ()
    ) -> dict[Container, None]:
        """The containers that are due, in the order of the node; those without a region as well.

        Args:
            observation: One with the slots.
            kept: Containers that are due whatever they look like.
        """
        self._turn += 1
        states, table = observation.proved(), observation.table
        containers = observation.containers
        processes, devices = table.processes, table.devices
        limits, used = devices.memory_limit_bytes, devices.memory_used_bytes
        compared = (
            containers,
            states,
            bytes(0 < limit < use for use, limit in zip(used, limits, strict=True)),
            *(getattr(table.regions, name).tobytes() for name in _OF_REGIONS),
            *(getattr(processes, name).tobytes() for name in _OF_SLOTS),
            *(getattr(devices, name).tobytes() for name in _OF_DEVICES),
            processes.settled.tobytes(),
        )
        # Containers without a region cost nothing but a look at their directory.
        chosen = dict.fromkeys(observation.missing)
        if self._compared != compared:
            self._compared = compared
            chosen.update(dict.fromkeys(self._compare(observation, compared[2])))
        chosen.update(dict.fromkeys(self._unsettled))
        chosen.update(dict.fromkeys(each for each in containers if each in kept))
        chosen.update(dict.fromkeys(containers[self._turn % self._turns :: self._turns]))
        return chosen

    def _compare(self, observation: Observation, over: bytes) -> list[Container]:
        """Find the containers that have changed, and those that are not settled."""
        states, table = observation.proved(), observation.table
        processes, devices = table.processes, table.devices
        of_slots = [getattr(processes, name).tobytes() for name in _OF_SLOTS]
        of_devices = [getattr(devices, name).tobytes() for name in _OF_DEVICES]
        settled = processes.settled.tolist()
        before, self._seen = self._seen, {}
        changed, unsettled = [], []
        rows = zip(
            observation.containers,
            *(getattr(table.regions, name).tolist() for name in _OF_REGIONS),
            strict=True,
        )
        for row, (
            container, code, layout, semaphore, owner, priority, mark, slot, slots, device, count
        ) in enumerate(rows):  # fmt: skip
            ends, end = slot + slots, device + count
            cells = [each[_CELL * slot : _CELL * ends] for each in of_slots]
            cells += [each[_CELL * device : _CELL * end] for each in of_devices]
            cells += [states.states[slot:ends], over[device:end]]
            cells.append(b"%d %d %d" % (code, priority, mark < 0))
            proof = states.proved.get(row)
            seen = self._seen[container] = b"".join(cells), proof
            known = before.get(container)
            if (
                known is None
                or known[0] != seen[0]
                or (known[1] is not proof and known[1] != proof)
            ):
                changed.append(container)
            if (
                semaphore & _LOW_HALF != 1
                or owner
                or 0 in settled[slot:ends]
                # Its second lock stands in no column.
                or layout == Layout.V1_1_POSTINIT.number
            ):
                unsettled.append(container)
        self._unsettled = tuple(unsettled)
        return changed
