"""What the driver said: frozen attrs classes, units in their names, None where it said nothing."""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from .states import NvmlFault, NvmlState

if TYPE_CHECKING:
    from collections.abc import Collection

    from .driver import SampledProcess

#: The driver's lists of processes.
KINDS = ("compute", "graphics", "mps")


@attrs.frozen
class NvmlDevice:
    """One GPU, or one MIG device: a compute instance of a GPU instance.

    Attributes:
        index: NVML index of the GPU, the one of ``nvidia-smi``.
        uuid: ``GPU-…`` or ``MIG-…``; None where the driver does not tell. That of a lost GPU is
            remembered.
        name: The driver's name of it.
        state: ``OK``, or why nothing more can be read of it, such as ``GPU_IS_LOST``.
        memory_total_bytes: Its memory.
        memory_used_bytes: What of it is in use, with what the driver keeps for itself.
        gpu_util_percent: Share of the last sample period in which a kernel ran.
        memory_util_percent: Share in which its memory was read or written.
        mig_enabled: Whether MIG is on; False where the GPU has none.
        mig_devices: Its MIG devices.
        processes_state: ``OK`` if its list of processes is complete.
        utilization_state: ``OK`` if its processes' utilisation could be read; ``NOT_SUPPORTED``
            under MIG, with every driver so far.
        faults: Why the figures that are None are None.
        temperature_celsius: Of its core. This and what follows is None, without a fault, where the
            sampler was not told to ask (``sensors=True``).
        power_usage_watts: What it draws.
        ecc_corrected_errors: Memory errors of its lifetime that ECC has corrected.
        ecc_uncorrected_errors: Those that it could not.
        slot: Of a MIG device, its number among those of the GPU, as ``nvidia-smi -L`` counts them.
        profile: Of a MIG device, such as ``1g.5gb`` or ``1c.3g.20gb``.
        gpu_instance_id: Of a MIG device, the number of its GPU instance.
        compute_instance_id: Of a MIG device, the number of its compute instance.
    """

    index: int
    uuid: str | None
    name: str | None
    state: NvmlState
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    gpu_util_percent: int | None = None
    memory_util_percent: int | None = None
    mig_enabled: bool | None = None
    mig_devices: tuple[NvmlDevice, ...] = ()
    processes_state: NvmlState = NvmlState.OK
    utilization_state: NvmlState = NvmlState.OK
    faults: tuple[NvmlFault, ...] = ()
    temperature_celsius: int | None = None
    power_usage_watts: float | None = None
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    slot: int | None = None
    profile: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


@attrs.frozen
class NvmlProcess:
    """What one process uses of one GPU or MIG device.

    Attributes:
        pid: Its pid as the driver tells it: the host's, if asked in the host's pid namespace.
        device_index: NVML index of the GPU.
        device_uuid: Uuid of the GPU, or of the MIG device; None where the driver does not tell.
        kinds: In which of the driver's lists it stands: ``compute``, ``graphics``, ``mps``; empty
            in a sample of utilisation.
        memory_used_bytes: What it uses of the device's memory, in all.
        sm_util_percent: Share of the last second's sample in which its kernels ran.
        memory_util_percent: Share in which it read or wrote device memory.
        enc_util_percent: Of the video encoder.
        dec_util_percent: Of the video decoder.
        sampled_at_us: The time of its newest sample, Unix microseconds; None if it has none.
        name: The program, as the driver tells it: raw text. Only `NvmlSampler.process_view` asks.
    """

    pid: int
    device_index: int
    device_uuid: str | None
    kinds: tuple[str, ...]
    memory_used_bytes: int | None
    sm_util_percent: int | None
    memory_util_percent: int | None
    enc_util_percent: int | None
    dec_util_percent: int | None
    sampled_at_us: int | None = None
    name: str | None = None


@attrs.frozen(slots=False)
class ProcessColumns:
    """The processes of one GPU, or of one MIG device, as columns; one row per process, by pid.

    Attributes:
        device_index: NVML index of the GPU.
        device_uuid: Uuid of the GPU, or of the MIG device; None where the driver does not tell.
        pids: The processes.
        kinds: In which lists they stand: 1 compute, 2 graphics, 4 mps, summed.
        memory_used_bytes: -1 where not known.
        sm_util_percent: -1 where not known.
        memory_util_percent: As above.
        enc_util_percent: As above.
        dec_util_percent: As above.
        sampled_at_us: Of the newest sample; 0 where there is none.
        samples: The driver's samples of the last second, as it gave them: pid, time in
            microseconds, SM, memory, encoder, decoder.
    """

    device_index: int
    device_uuid: str | None
    pids: array[int] = attrs.field(factory=lambda: array("q"))
    kinds: bytes = b""
    memory_used_bytes: array[int] = attrs.field(factory=lambda: array("q"))
    sm_util_percent: array[int] = attrs.field(factory=lambda: array("b"))
    memory_util_percent: array[int] = attrs.field(factory=lambda: array("b"))
    enc_util_percent: array[int] = attrs.field(factory=lambda: array("b"))
    dec_util_percent: array[int] = attrs.field(factory=lambda: array("b"))
    sampled_at_us: array[int] = attrs.field(factory=lambda: array("q"))
    samples: tuple[SampledProcess, ...] = ()

    @cached_property
    def rows(self) -> dict[int, int]:
        """The row of each pid."""
        return {pid: row for row, pid in enumerate(self.pids)}

    def process(self, row: int) -> NvmlProcess:
        """One row as an object."""
        kinds = self.kinds[row]
        return NvmlProcess(
            self.pids[row],
            self.device_index,
            self.device_uuid,
            tuple(name for bit, name in enumerate(KINDS) if kinds & 1 << bit),
            _known(self.memory_used_bytes[row]),
            _known(self.sm_util_percent[row]),
            _known(self.memory_util_percent[row]),
            _known(self.enc_util_percent[row]),
            _known(self.dec_util_percent[row]),
            self.sampled_at_us[row] or None,
        )

    @property
    def utilization(self) -> tuple[NvmlProcess, ...]:
        """The samples as objects."""
        found = []
        for pid, at_us, *percents in self.samples:
            sm, memory, enc, dec = (each if each <= 100 else None for each in percents)
            place = (self.device_index, self.device_uuid, (), None)
            found.append(NvmlProcess(pid, *place, sm, memory, enc, dec, at_us))
        return tuple(found)


def _known(figure: int) -> int | None:
    return None if figure < 0 else figure


@attrs.frozen(slots=False)
class NvmlSample:
    """All that the driver said at one time. A value: it compares, pickles and may be shared.

    Attributes:
        taken_at_ns: When, Unix nanoseconds.
        state: ``OK``, or why there is nothing.
        fault: The call that failed, for `state` or for `driver_version`; None if none did.
        driver_version: Such as ``570.124.06``; None where the driver does not tell.
        devices: The GPUs, by index.
        columns: The processes on them, one entry per GPU and MIG device, for programs that look
            often: no object is made per process. On a GPU with MIG a process stands under the MIG
            device alone.
        sees_all_processes: Whether the pids are those of the host's namespace and the lists hold
            every process, so that a process that is not listed uses nothing.
    """

    taken_at_ns: int
    state: NvmlState
    fault: NvmlFault | None
    driver_version: str | None
    devices: tuple[NvmlDevice, ...]
    columns: tuple[ProcessColumns, ...]
    sees_all_processes: bool

    @cached_property
    def processes(self) -> tuple[NvmlProcess, ...]:
        """The processes on the GPUs, by GPU and pid.

        A process on several devices stands here once for each of them.
        """
        return tuple(each.process(row) for each in self.columns for row in range(len(each.pids)))

    @property
    def utilization(self) -> tuple[NvmlProcess, ...]:
        """The driver's samples of the last second, as it gives them; several of one process too.

        Inside a container the pids may be the host's, also where those of `processes` are not: some
        drivers translate the one and not the other. `processes` pairs only what is certain.

        Shell: ``nvidia-smi pmon -c 1 -s u``.
        """
        return tuple(sample for each in self.columns for sample in each.utilization)

    @cached_property
    def pids(self) -> frozenset[int]:
        """The processes on the GPUs."""
        return frozenset(pid for each in self.columns for pid in each.pids)

    @cached_property
    def _by_uuid(self) -> dict[str | None, ProcessColumns]:
        return {each.device_uuid: each for each in self.columns}

    @cached_property
    def _sampled(self) -> frozenset[tuple[str | None, int]]:
        return frozenset(
            (each.device_uuid, sample[0]) for each in self.columns for sample in each.samples
        )

    @cached_property
    def _places(self) -> dict[str | None, NvmlDevice]:
        return {
            place.uuid: place for device in self.devices for place in (device, *device.mig_devices)
        }

    def of_pid(self, pid: int, *, without: Collection[str | None] = ()) -> tuple[NvmlProcess, ...]:
        """What the driver lists of one process, one entry per device.

        Args:
            pid: Pid in the host's namespace.
            without: Uuids of devices that are left out.
        """
        return tuple(
            each.process(each.rows[pid])
            for each in self.columns
            if each.device_uuid not in without and pid in each.rows
        )

    def process(self, device_uuid: str, pid: int) -> NvmlProcess | None:
        """What a process uses of a GPU or MIG device.

        A process that is not listed uses nothing, where the driver's lists are complete: its
        figures are 0 then. Where they are not, nothing is known.

        Args:
            device_uuid: ``GPU-…`` or ``MIG-…``.
            pid: Pid in the host's namespace.

        Returns:
            The figures; None if nothing is known.
        """
        columns = self._by_uuid.get(device_uuid)
        if columns is not None and pid in columns.rows:
            return columns.process(columns.rows[pid])
        place = self._places.get(device_uuid)
        if place is None or not self.sees_all_processes:
            return None
        # With MIG on, the GPU's own entry holds only what no MIG device accounts for.
        if place.processes_state is not NvmlState.OK or place.mig_devices:
            return None
        if (device_uuid, pid) in self._sampled:
            return None  # it came or went while the driver was asked
        util = 0 if place.utilization_state is NvmlState.OK else None
        return NvmlProcess(pid, place.index, device_uuid, (), 0, util, util, util, util)
