"""Observations that are made by hand: a node with one card, and processes on it."""

from libhamiregion import RegionSet
from libhamiregion.node import NvmlSample, NvmlState, Observation
from libhamiregion.observation.containers import NO_FILE, Container
from libhamiregion.observation.driver import NvmlDevice, ProcessColumns
from libhamiregion.observation.model import NodeSnapshot
from libhamiregion.observation.names import ContainerId
from libhamiregion.observation.processes import (
    Entry,
    HostProcess,
    ProcessView,
    ProcVisibility,
    SlotStates,
)
from libhamiregion.observation.share import Share, share_of
from libhamiregion.units import GIB

GPU, MIG = "GPU-a", "MIG-a"
POD, OTHER_POD = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f", "1b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
ID = ContainerId("a" * 64, POD)
OTHER = ContainerId("b" * 64, OTHER_POD)
SHARE = share_of({"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_SM_LIMIT": "30"})
HOST = ProcVisibility(sees_host=True, sees_all_pids=True, own_pid=9, is_own_namespace=True)


def entry(pid: int, container: ContainerId | None = ID, **more: object) -> Entry:
    process = HostProcess(pid, 1, (pid, 1), 0, "root", "python", container)
    facts = {"share": Share(), "has_libvgpu": False, "read_s": 1.0, **more}
    return Entry(1, process, "", **facts)  # type: ignore[arg-type]


def seen(
    *entries: Entry,
    listed: tuple[int, ...] = (1,),
    uuid: str = GPU,
    directory: str | None = f"/c/{POD}_main",
    **more: object,
) -> Observation:
    """One container without a region, and processes on a card of 24 GiB."""
    missing = Container(POD, "main", directory, missing=NO_FILE)
    mig = (NvmlDevice(0, MIG, "MIG 1g.5gb", NvmlState.OK, 5 * GIB),) if uuid == MIG else ()
    card = NvmlDevice(0, GPU, "A30", NvmlState.OK, 24 * GIB, mig_devices=mig)
    zeros = (0,) * len(listed)
    columns = ProcessColumns(0, uuid, listed, (5 * GIB,) * len(listed), *[zeros] * 4)
    sample = NvmlSample(1, NvmlState.OK, None, "570.0", (card,), (columns,), True, 100.0)
    known = {each.identity[0]: each for each in entries}
    empty = NodeSnapshot((), () if directory is None else (missing,), RegionSet().read(), 1.0)
    facts = {
        "snapshot": empty,
        "sample": sample,
        "states": SlotStates(b"", {}, {}),
        "processes": ProcessView("/proc", 100.0, 101.0, known, HOST, ()),
        "gaps": (),
        "driver_error": None,
        "processes_error": None,
        "began_s": 100.0,
        "processes_read_s": 101.0,
        "regions_read_at_ns": 1,
        **more,
    }
    return Observation(**facts)  # type: ignore[arg-type]
