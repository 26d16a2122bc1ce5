"""The one place that calls nvidia-ml-py: what it raises becomes a `Refusal` with a state."""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any

from .states import NvmlState, Refusal, state_of

# A list that grows between the question for its size and the question for its entries.
_GROWTH_TRIES = 4

# The drivers from 535.43 to 535.86 let the third version of the list functions write entries of 32
# bytes. All others, earlier and later, write 24, as the second version always does.
_WIDE_ENTRIES = re.compile(r"535\.(4[3-9]|[5-7]\d|8[0-6])\b")
_ENTRY_BYTES = 24

_NOT_AVAILABLE = (1 << 64) - 1
_MAX_BYTES = (1 << 62) - 1


class Driver:
    """NVML, loaded and initialised at most once by each of these; not thread-safe by itself.

    NVML counts its initialisations, so several of these, and other users of NVML in the program,
    do not disturb each other.
    """

    def __init__(self, library: str | None) -> None:
        self._library = library
        self._handle: ctypes.CDLL | None = None
        self._nvml: Any = None
        self.is_open = False

    def open(self) -> None:
        """Load and initialise.

        Raises:
            Refusal: It cannot be loaded or initialised; a later try may succeed.
        """
        if self.is_open:
            return
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                raise Refusal("import pynvml", NvmlState.PACKAGE_MISSING) from None
            self._nvml = pynvml
        if self._library is not None and self._handle is None:
            # The loader takes a library that is loaded already for the one of the same SONAME,
            # which is what nvidia-ml-py asks for.
            try:
                self._handle = ctypes.CDLL(os.fspath(self._library))
            except OSError as error:
                state = NvmlState.LIBRARY_NOT_FOUND
                raise Refusal("dlopen", state, said=str(error)) from None
        self.call("nvmlInitWithFlags", 0)
        self.is_open = True

    def close(self) -> None:
        """Give the initialisation back; what NVML says to it does not matter any more."""
        if not self.is_open:
            return
        self.is_open = False
        try:
            self.call("nvmlShutdown")
        except Refusal:
            return

    def call(self, name: str, *args: Any) -> Any:
        """Call one function of nvidia-ml-py.

        Raises:
            Refusal: It failed.
        """
        function = getattr(self._nvml, name, None)
        if function is None:
            raise Refusal(name, NvmlState.FUNCTION_NOT_FOUND)
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            code = int(error.value)
            raise Refusal(name, state_of(code), code) from None
        except UnicodeDecodeError as error:
            # nvidia-ml-py decodes texts as UTF-8; a program may be called anything.
            return error.object.decode("utf-8", "backslashreplace")

    def entries(self, name: str, *args: Any) -> list[Any]:
        """Call a function that returns a list, again if the list has grown meanwhile.

        Raises:
            Refusal: It failed, or grew each time.
        """
        for _ in range(_GROWTH_TRIES):
            try:
                return list(self.call(name, *args))
            except Refusal as refusal:
                # nvidia-ml-py raises "success" for a list without entries.
                if refusal.state is NvmlState.OK:
                    return []
                if refusal.state is not NvmlState.INSUFFICIENT_SIZE:
                    raise
                last = refusal
        raise last

    def listed(self, name: str, driver_version: str | None, *args: Any) -> list[Any]:
        """Call a function that lists processes, in the newest version that can be trusted.

        Raises:
            Refusal: It failed.
        """
        versions = ["_v3", "_v2"]
        if driver_version is not None and _WIDE_ENTRIES.match(driver_version):
            versions.remove("_v3")
        for version in versions:
            self._check_entries(name + version, version)
            try:
                return self.entries(name + version, *args)
            except Refusal as refusal:
                if refusal.state is not NvmlState.FUNCTION_NOT_FOUND:
                    raise
                last = refusal
        raise last

    def _check_entries(self, name: str, version: str) -> None:
        entry = getattr(self._nvml, f"c_nvmlProcessInfo{version}_t", None)
        entry = entry or getattr(self._nvml, "c_nvmlProcessInfo_t", None)
        if entry is None or ctypes.sizeof(entry) != _ENTRY_BYTES:
            raise Refusal(name, NvmlState.PACKAGE_UNFIT)


def plausible_bytes(call: str, value: int | None) -> int:
    """A number of bytes.

    Raises:
        Refusal: It is none.
    """
    if value is None or value == _NOT_AVAILABLE:
        raise Refusal(call, NvmlState.NO_FIGURE)
    if not 0 <= value <= _MAX_BYTES:
        raise Refusal(call, NvmlState.OUT_OF_RANGE)
    return value


def plausible_percent(call: str, value: int) -> int:
    """A utilisation; drivers are known to return numbers of ten digits.

    Raises:
        Refusal: It is none.
    """
    if not 0 <= value <= 100:
        raise Refusal(call, NvmlState.OUT_OF_RANGE)
    return value


def plausible_figure(call: str, value: int, least: int, most: int) -> int:
    """A number in its range.

    Raises:
        Refusal: It is out of it.
    """
    if not least <= value <= most:
        raise Refusal(call, NvmlState.OUT_OF_RANGE)
    return value
