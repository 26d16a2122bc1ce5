"""Why NVML gives no figure: a state each, never an exception and never a 0."""

from __future__ import annotations

from libhamiregion.observation.driver import NvmlState


class NvmlCallFailed(Exception):
    """A call that failed; never leaves the modules about NVML.

    Attributes:
        call: The function.
        state: The answer.
        message: What failed, how, and what to do, as one sentence.
    """

    def __init__(self, call: str, state: NvmlState, detail: str | None = None) -> None:
        self.call = call
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
    16: NvmlState.RESET_REQUIRED,
    18: NvmlState.LIB_RM_VERSION_MISMATCH,
    999: NvmlState.UNKNOWN_ERROR,
}


def state_of(code: int) -> NvmlState:
    """The state for a value of ``nvmlReturn_t``."""
    return _BY_CODE.get(code, NvmlState.FAILED)
