"""Why NVML gives no figure: a state each, never an exception and never a 0."""

from __future__ import annotations

import enum


class NvmlState(str, enum.Enum):
    """Why there is, or is not, an answer of the driver."""

    OK = "ok"
    UNINITIALIZED = "uninitialized"
    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    NOT_FOUND = "not_found"
    INSUFFICIENT_SIZE = "insufficient_size"
    DRIVER_NOT_LOADED = "driver_not_loaded"
    TIMEOUT = "timeout"
    LIBRARY_NOT_FOUND = "library_not_found"
    FUNCTION_NOT_FOUND = "function_not_found"
    GPU_IS_LOST = "gpu_is_lost"
    LIB_RM_VERSION_MISMATCH = "lib_rm_version_mismatch"

    #: Any other error of the driver.
    FAILED = "failed"
    #: The sampler has not been opened, or has been closed.
    CLOSED = "closed"
    #: The sampler does not ask for it.
    NOT_ASKED = "not_asked"
    #: nvidia-ml-py cannot be imported.
    PACKAGE_MISSING = "package_missing"
    #: The driver gave a number that cannot be right, such as a utilisation above 100 percent.
    OUT_OF_RANGE = "out_of_range"

    @property
    def explanation(self) -> str:
        """What it means, and what to do about it."""
        return _EXPLANATIONS.get(self) or f"the driver says: {self.value.replace('_', ' ')}"


class NvmlCallFailed(Exception):
    """A call that failed; never leaves the modules about NVML.

    Attributes:
        state: The answer.
        message: What failed, how, and what to do, as one sentence.
    """

    def __init__(self, call: str, state: NvmlState, detail: str | None = None) -> None:
        self.state = state
        self.message = f"{call}: {detail or state.explanation}"
        super().__init__(self.message)


# nvmlReturn_t, part of NVML's binary interface.
_BY_CODE = {
    0: NvmlState.OK,
    1: NvmlState.UNINITIALIZED,
    3: NvmlState.NOT_SUPPORTED,
    4: NvmlState.NO_PERMISSION,
    6: NvmlState.NOT_FOUND,
    7: NvmlState.INSUFFICIENT_SIZE,
    9: NvmlState.DRIVER_NOT_LOADED,
    10: NvmlState.TIMEOUT,
    12: NvmlState.LIBRARY_NOT_FOUND,
    13: NvmlState.FUNCTION_NOT_FOUND,
    15: NvmlState.GPU_IS_LOST,
    18: NvmlState.LIB_RM_VERSION_MISMATCH,
}


def state_of(code: int) -> NvmlState:
    """The state for a value of ``nvmlReturn_t``."""
    return _BY_CODE.get(code, NvmlState.FAILED)


# If there is more to say than the state's own name.
_EXPLANATIONS = {
    NvmlState.NOT_SUPPORTED: "this device, or its present mode, does not have the figure",
    NvmlState.NO_PERMISSION: "the driver refuses this user; run as root",
    NvmlState.DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded; load it: modprobe nvidia",
    NvmlState.LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 cannot be loaded: there is no NVIDIA driver, or"
    " it is not mounted into this container",
    NvmlState.FUNCTION_NOT_FOUND: "this driver, or this release of nvidia-ml-py, is too old",
    NvmlState.GPU_IS_LOST: "the GPU cannot be reached; see dmesg for its Xid, and reset it or"
    " restart the node",
    NvmlState.LIB_RM_VERSION_MISMATCH: "the NVML library and the kernel driver have different"
    " versions, as after an update; restart the node, or this program",
    NvmlState.PACKAGE_MISSING: "nvidia-ml-py is not installed: pip install nvidia-ml-py",
    NvmlState.OUT_OF_RANGE: "the driver gave a number that cannot be right",
}
