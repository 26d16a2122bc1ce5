"""What NVML may answer in place of a figure: a state each, never an exception and never a 0."""

from __future__ import annotations

import enum
import itertools

import attrs


class NvmlState(str, enum.Enum):
    """Why there is, or is not, an answer of the driver.

    ``OK``, one state for each documented value of ``nvmlReturn_t``, and those that no return value
    tells: ``CLOSED``, ``NOT_ASKED``, ``PACKAGE_MISSING``, ``NO_FIGURE``, ``OUT_OF_RANGE`` and
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
    #: The sampler was told not to ask for it.
    NOT_ASKED = "not_asked"
    #: nvidia-ml-py cannot be imported.
    PACKAGE_MISSING = "package_missing"
    #: The driver answers that it has no such figure (``NVML_VALUE_NOT_AVAILABLE``).
    NO_FIGURE = "no_figure"
    #: The driver gave a number that cannot be right, such as a utilisation above 100 percent.
    OUT_OF_RANGE = "out_of_range"
    #: A return value that this library does not know; the fault has its number.
    UNDOCUMENTED = "undocumented"

    @property
    def explanation(self) -> str:
        """What it means, and what to do about it."""
        return _EXPLANATIONS.get(self) or f"the driver says: {self.value.replace('_', ' ')}"


@attrs.frozen
class NvmlFault:
    """A question that the driver did not answer.

    Attributes:
        figure: What is missing for it: a field of the object that has this fault; ``device`` or
            ``nvml`` for all fields; ``processes`` for the list of processes; ``utilization`` for
            all figures of that.
        call: The NVML function.
        state: Its answer.
        code: The number that it returned, None where the state comes from no return value.
        detail: The loader's message about a library that was named by its path; else None.
    """

    figure: str
    call: str
    state: NvmlState
    code: int | None = None
    detail: str | None = None

    @property
    def message(self) -> str:
        """What failed, how, and what to do, as one sentence."""
        number = f" ({self.code})" if self.state is NvmlState.UNDOCUMENTED else ""
        return f"{self.call}: {self.detail or self.state.explanation}{number}"


class NvmlCallFailed(Exception):
    """A call that failed; never leaves the modules about NVML."""

    def __init__(
        self, call: str, state: NvmlState, code: int | None = None, detail: str | None = None
    ) -> None:
        super().__init__(call, state, code, detail)
        self.state = state

    def fault(self, figure: str) -> NvmlFault:
        """Return the failure as a value."""
        return NvmlFault(figure, *self.args)


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
    NvmlState.NO_FIGURE: "the driver has no such figure for this process or device",
    NvmlState.OUT_OF_RANGE: "the driver gave a number that cannot be right",
}
