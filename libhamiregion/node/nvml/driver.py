"""The one place that calls nvidia-ml-py: what it raises becomes a `NvmlCallFailed` with a state."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from typing import Any, TypeAlias

from .states import NvmlCallFailed, NvmlState, state_of

# A list that grows from one question to the next.
_GROWTH_TRIES = 4

# The drivers from 535.43 to 535.86 let the third version of the list functions write entries of 32
# bytes. All others, earlier and later, write 24, as the second version always does.
_WIDE_ENTRIES = re.compile(r"535\.(4[3-9]|[5-7]\d|8[0-6])\b")
_PROCESS = struct.Struct("=I4xQII")
_SAMPLE = struct.Struct("=I4xQIIII")
# nvmlProcessUtilizationInfo_v1_t: time, pid, SM, memory, encoder, decoder (JPEG, optical flow); and
# what asks for them: version, room, time, their address.
_NEWER_SAMPLE = struct.Struct("=Q5I12x")
_NEWER_REQUEST = struct.Struct("=IIQQ")
_NEWER_VERSION = 1 << 24 | _NEWER_REQUEST.size
_FIRST_CAPACITY = 64
_MAX_CAPACITY = 1 << 20

UTILIZATION = "nvmlDeviceGetProcessUtilization"
_NEWER_UTILIZATION = "nvmlDeviceGetProcessesUtilizationInfo"
#: nvmlProcessInfo_t: pid, memory in bytes, GPU instance, compute instance.
ListedProcess: TypeAlias = tuple[int, int, int, int]
#: nvmlProcessUtilizationSample_t: pid, time in microseconds, SM, memory, encoder, decoder.
SampledProcess: TypeAlias = tuple[int, int, int, int, int, int]

# What a driver answers where it has no samples: none now, none of such a device, none ever.
_NOBODY = (NvmlState.NOT_FOUND, NvmlState.NOT_SUPPORTED, NvmlState.FUNCTION_NOT_FOUND)
NOT_AVAILABLE = (1 << 64) - 1
MAX_BYTES = (1 << 62) - 1


class Driver:
    """NVML, loaded and initialised at most once by each of these; not thread-safe by itself.

    NVML counts its initialisations, so several of these, and other users of NVML in the program,
    do not disturb each other.
    """

    def __init__(self, library: str | None) -> None:
        self._library = library
        self._handle: ctypes.CDLL | None = None
        self._nvml: Any = None
        self._loaded: ctypes.CDLL | None = None
        # How much room the last list needed.
        self._capacities: dict[str, int] = {}
        self.is_open = False

    def open(self) -> None:
        """Load and initialise.

        Raises:
            NvmlCallFailed: It cannot be loaded or initialised; a later try may succeed.
        """
        if self.is_open:
            return
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                raise NvmlCallFailed("import pynvml", NvmlState.PACKAGE_MISSING) from None
            self._nvml = pynvml
        if self._library is not None and self._handle is None:
            # The loader takes a library that is loaded already for the one of the same SONAME,
            # which is what nvidia-ml-py asks for.
            try:
                self._handle = ctypes.CDLL(os.fspath(self._library))
            except OSError as error:
                state = NvmlState.LIBRARY_NOT_FOUND
                raise NvmlCallFailed("dlopen", state, said=str(error)) from None
        self.call("nvmlInitWithFlags", 0)
        self.is_open = True

    def close(self) -> None:
        """Give the initialisation back; what NVML says to it does not matter any more."""
        if not self.is_open:
            return
        self.is_open = False
        self._loaded = None
        try:
            self.call("nvmlShutdown")
        except NvmlCallFailed:
            return

    def call(self, name: str, *args: Any) -> Any:
        """Call one function of nvidia-ml-py.

        Raises:
            NvmlCallFailed: It failed.
        """
        function = getattr(self._nvml, name, None)
        if function is None:
            raise NvmlCallFailed(name, NvmlState.FUNCTION_NOT_FOUND)
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            code = int(error.value)
            raise NvmlCallFailed(name, state_of(code), code) from None
        except UnicodeDecodeError as error:
            # nvidia-ml-py decodes texts as UTF-8; a program may be called anything.
            return error.object.decode("utf-8", "backslashreplace")

    def listed(self, name: str, driver_version: str | None, handle: Any) -> bytes:
        """Call a function that lists processes, in the newest version that can be trusted.

        Returns:
            The list as the driver writes it, for `listed_processes`.

        Raises:
            NvmlCallFailed: It failed, or the list grew each time.
        """
        versions = ["_v3", "_v2"]
        if driver_version is not None and _WIDE_ENTRIES.match(driver_version):
            versions.remove("_v3")
        for version in versions:
            try:
                return self._filled(name + version, _PROCESS, handle)
            except NvmlCallFailed as failure:
                if failure.state is not NvmlState.FUNCTION_NOT_FOUND:
                    raise
                last = failure
        raise last

    def sampled(self, handle: Any, since_us: int, *, is_busy: bool) -> list[SampledProcess]:
        """The samples of utilisation of a device's processes since a time, Unix microseconds.

        Args:
            handle: The device.
            since_us: Samples of later times are wanted.
            is_busy: Whether the device may be busy. With Blackwell GPUs the older of two functions
                shows nobody at work; the newer one, from 550 on, is asked where that can be.

        Raises:
            NvmlCallFailed: It failed.
        """
        older: NvmlCallFailed | None = None
        rows: list[SampledProcess] = []
        try:
            rows = list(_SAMPLE.iter_unpack(self._filled(UTILIZATION, _SAMPLE, handle, since_us)))
        except NvmlCallFailed as failure:
            if failure.state not in _NOBODY:
                raise
            older = failure
        if is_busy and not any(row[2] for row in rows):
            try:
                newer = self._filled(_NEWER_UTILIZATION, _NEWER_SAMPLE, handle, since_us)
            except NvmlCallFailed as failure:
                if failure.state not in _NOBODY:
                    raise
            else:
                return [
                    (pid, at_us, sm, memory, enc, dec)
                    for at_us, pid, sm, memory, enc, dec in _NEWER_SAMPLE.iter_unpack(newer)
                ]
        if older is not None:
            raise older
        return rows

    def _filled(
        self, name: str, entry: struct.Struct, handle: Any, since_us: int | None = None
    ) -> bytes:
        """Call a function that fills an array; what it has filled.

        nvidia-ml-py makes several objects of each entry, which on a node with a thousand processes
        costs more than the driver.
        """
        if self._loaded is None:
            # By nvidia-ml-py already: the loader knows it by this name.
            self._loaded = ctypes.CDLL("libnvidia-ml.so.1")
        function = getattr(self._loaded, name, None)
        if function is None:
            raise NvmlCallFailed(name, NvmlState.FUNCTION_NOT_FOUND)
        capacity = self._capacities.get(name, _FIRST_CAPACITY)
        for _ in range(_GROWTH_TRIES):
            count = ctypes.c_uint(capacity)
            memory = ctypes.create_string_buffer(capacity * entry.size)
            if since_us is None:
                code = function(handle, ctypes.byref(count), memory)
            elif name == UTILIZATION:
                since = ctypes.c_ulonglong(since_us)
                code = function(handle, memory, ctypes.byref(count), since)
            else:
                request = ctypes.create_string_buffer(
                    _NEWER_REQUEST.pack(
                        _NEWER_VERSION, capacity, since_us, ctypes.addressof(memory)
                    ),
                    _NEWER_REQUEST.size,
                )
                code = function(handle, request)
                count.value = _NEWER_REQUEST.unpack(request)[1]
            state = state_of(code)
            if state is NvmlState.OK:
                self._capacities[name] = capacity
                return memory.raw[: min(count.value, capacity) * entry.size]
            if state is not NvmlState.INSUFFICIENT_SIZE:
                break
            capacity = min(max(count.value, capacity) * 3 // 2, _MAX_CAPACITY)
        raise NvmlCallFailed(name, state, code)


def listed_processes(filled: bytes) -> list[ListedProcess]:
    """Take a list of processes apart in one go."""
    return list(_PROCESS.iter_unpack(filled))
