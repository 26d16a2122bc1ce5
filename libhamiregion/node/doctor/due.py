"""Which containers are worth a diagnosis now: for those who diagnose every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libhamiregion.layouts import Layout
from libhamiregion.models import ProcessStatus

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


class DueContainers:
    """Chooses the containers to diagnose: those that have changed, and a share of the others.

    A container is due when what a read and /proc tell of its slots, limits and devices has changed,
    while its lock is taken, a slot of it is being written or a process of it is suspended, and
    where the caller says so. What
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

    def forget(self) -> None:
        """Take all containers for changed: what was chosen last has not been diagnosed."""
        self._seen.clear()

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
        regions, processes, devices = table.regions, table.processes, table.devices
        of_slots = [
            column.tobytes() for column in (processes.pid, processes.host_pid, processes.status)
        ]
        limits, used = devices.memory_limit_bytes, devices.memory_used_bytes
        of_devices = [column.tobytes() for column in (limits, devices.sm_limit_percent)]
        over = bytes(0 < limit < use for use, limit in zip(used, limits, strict=True))
        settled, statuses = processes.settled.tolist(), processes.status.tolist()
        before, self._seen = self._seen, {}
        # Containers without a region cost nothing but a look at their directory.
        chosen = dict.fromkeys(observation.missing)
        rows = zip(
            observation.containers,
            *(getattr(regions, name).tolist() for name in _OF_REGIONS),
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
                or semaphore & _LOW_HALF != 1
                or owner
                or 0 in settled[slot:ends]
                # Whether it grows all the same.
                or ProcessStatus.SUSPENDED in statuses[slot:ends]
                or container in kept
                or row % self._turns == self._turn % self._turns
                # Its second lock stands in no column.
                or layout == Layout.V1_1_POSTINIT.number
            ):
                chosen[container] = None
        return chosen
