"""Scenes for the fake driver, and what tests about it look at."""

import pynvml

from libhamiregion.node.nvml import NvmlProcess, NvmlSample
from libhamiregion.units import MIB

GPU = "GPU-00000000-0000-0000-0000-000000000000"
OTHER = "GPU-11111111-1111-1111-1111-111111111111"
MIG_A = "MIG-aaaaaaaa-0000-0000-0000-000000000000"
MIG_B = "MIG-bbbbbbbb-0000-0000-0000-000000000000"

CARD = f"device 0 {GPU} {81920 * MIB} {5000 * MIB} 37 12 NVIDIA H100 80GB HBM3"
SECOND = f"device 1 {OTHER} {40960 * MIB} {3000 * MIB} 5 1 NVIDIA A100-SXM4-40GB"
MIG = (
    SECOND,
    "mode 1 mig-on",
    f"mig 1 0 {MIG_A} 7 0 {4864 * MIB} {1000 * MIB} NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    f"mig 1 2 {MIG_B} 3 1 {19968 * MIB} {2000 * MIB} NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb",
    f"process 1.0 compute 301 {900 * MIB}",
    f"process 1.2 compute 302 {1900 * MIB}",
)


def initialisations() -> int:
    return pynvml.nvmlLib.fake_nvml_initialised()


def one(sample: NvmlSample, pid: int) -> NvmlProcess:
    (process,) = (process for process in sample.processes if process.pid == pid)
    return process


def utils(process: NvmlProcess) -> tuple[int | None, ...]:
    return (
        process.sm_util_percent,
        process.memory_util_percent,
        process.enc_util_percent,
        process.dec_util_percent,
    )
