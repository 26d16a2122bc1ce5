"""What NVML may answer in place of a figure: a state each, never an exception and never a 0."""

from __future__ import annotations

import enum
import itertools


class NvmlState(str, enum.Enum):
    """Why there is, or is not, an answer of the driver.

    ``OK``, one state for each documented value of ``nvmlReturn_t``, and those that no return value
    tells: ``CLOSED``, ``NOT_ASKED``, ``PACKAGE_MISSING``, ``OUT_OF_RANGE`` and
    ``UNDOCUMENTED``.
    """

    OK = "ok"

    UNINITIALIZED = "uninitialized"
    INVALID_ARGUMENT = "invalid_argument"
    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    ALREADY_INITIALIZED = "already_initialized"
    NOT_FOUND = "not_found"
    INSUFFICIENT_SIZE = "insufficient_size"
    INSUFFICIENT_POWER = "insufficient_power"
    DRIVER_NOT_LOADED = "driver_not_loaded"
    TIMEOUT = "timeout"
    IRQ_ISSUE = "irq_issue"
    LIBRARY_NOT_FOUND = "library_not_found"
    FUNCTION_NOT_FOUND = "function_not_found"
    CORRUPTED_INFOROM = "corrupted_inforom"
    GPU_IS_LOST = "gpu_is_lost"
    RESET_REQUIRED = "reset_required"
    OPERATING_SYSTEM = "operating_system"
    LIB_RM_VERSION_MISMATCH = "lib_rm_version_mismatch"
    IN_USE = "in_use"
    MEMORY = "memory"
    NO_DATA = "no_data"
    VGPU_ECC_NOT_SUPPORTED = "vgpu_ecc_not_supported"
    INSUFFICIENT_RESOURCES = "insufficient_resources"
    FREQ_NOT_SUPPORTED = "freq_not_supported"
    ARGUMENT_VERSION_MISMATCH = "argument_version_mismatch"
    DEPRECATED = "deprecated"
    NOT_READY = "not_ready"
    GPU_NOT_FOUND = "gpu_not_found"
    INVALID_STATE = "invalid_state"
    RESET_TYPE_NOT_SUPPORTED = "reset_type_not_supported"
    UNKNOWN = "unknown"

    #: The sampler has not been opened, or has been closed.
    CLOSED = "closed"
    #: The sampler does not ask for it.
    NOT_ASKED = "not_asked"
    #: nvidia-ml-py cannot be imported.
    PACKAGE_MISSING = "package_missing"
    #: The driver gave a number that cannot be right, such as a utilisation above 100 percent.
    OUT_OF_RANGE = "out_of_range"
    #: A return value that this library does not know.
    UNDOCUMENTED = "undocumented"

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


# nvmlReturn_t, part of NVML's binary interface: the members from OK to RESET_TYPE_NOT_SUPPORTED, in
# their order, are the values from 0 on.
_BY_CODE = dict(
    enumerate(itertools.takewhile(lambda each: each is not NvmlState.UNKNOWN, NvmlState))
)
_BY_CODE[999] = NvmlState.UNKNOWN


def state_of(code: int) -> NvmlState:
    """The state for a value of ``nvmlReturn_t``."""
    return _BY_CODE.get(code, NvmlState.UNDOCUMENTED)


# If there is more to say than the state's own name.
_EXPLANATIONS = {
    NvmlState.UNINITIALIZED: "another part of this program has shut NVML down; the next sample"
    " starts it again",
    NvmlState.NOT_SUPPORTED: "this device, or its present mode, does not have the figure",
    NvmlState.NO_PERMISSION: "the driver refuses this user; run as root",
    NvmlState.DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded; load it: modprobe nvidia",
    NvmlState.LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 cannot be loaded: there is no NVIDIA driver, or"
    " it is not mounted into this container",
    NvmlState.FUNCTION_NOT_FOUND: "this driver, or this release of nvidia-ml-py, does not know the"
    " question; update it",
    NvmlState.GPU_IS_LOST: "the GPU cannot be reached any more; see dmesg for its Xid, and reset it"
    " or restart the node",
    NvmlState.LIB_RM_VERSION_MISMATCH: "the NVML library and the kernel driver have different"
    " versions, as after an update; restart the node, or this program",
    NvmlState.PACKAGE_MISSING: "the Python package nvidia-ml-py is not installed; pip install"
    " nvidia-ml-py",
    NvmlState.OUT_OF_RANGE: "the driver gave a number that cannot be right",
}
