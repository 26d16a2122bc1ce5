"""The calls of NVML; what nvidia-ml-py raises becomes a `NvmlCallFailed` with a state."""

from __future__ import annotations

import contextlib
import ctypes
import struct
from typing import Any

from libhamiregion.observation.driver import NvmlState

from .states import NvmlCallFailed, state_of

# A list can grow from one question to the next.
_GROWTH_TRIES = 4
_FIRST_CAPACITY = 64
_MAX_CAPACITY = 1 << 20

#: The kernel has no pid above.
PID_MAX = 1 << 22
# nvmlProcessInfo_t: pid, memory in bytes, GPU instance, compute instance.
_PROCESS = struct.Struct("=I4xQII")
# Some drivers (535.43 to 535.86) let the third version of the list functions write entries of 32
# bytes. All others, earlier and later, write 24, as the second version always does.
_MAX_PROCESS_BYTES = 32
# nvmlProcessUtilizationSample_t: pid, time in microseconds, SM, memory, encoder, decoder.
_SAMPLE = struct.Struct("=I4xQIIII")
# nvmlProcessUtilizationInfo_v1_t: time, pid, SM, memory, encoder, decoder (JPEG, optical flow); and
# the request for them: version, room, time, their address.
_NEWER_SAMPLE = struct.Struct("=Q5I12x")
_NEWER_REQUEST = struct.Struct("=IIQQ")
_NEWER_VERSION = 1 << 24 | _NEWER_REQUEST.size
# The instance of a process that runs in none; others are small numbers.
_NO_INSTANCE = 0xFFFFFFFF
_MAX_INSTANCE = 255

UTILIZATION = "nvmlDeviceGetProcessUtilization"
_NEWER_UTILIZATION = "nvmlDeviceGetProcessesUtilizationInfo"
# The answers of a driver without samples: none now, none of such a device, none ever.
_NO_SAMPLES = (NvmlState.NOT_FOUND, NvmlState.NOT_SUPPORTED, NvmlState.FUNCTION_NOT_FOUND)


def _can_be(row: tuple[int, ...]) -> bool:
    pid, _, *instances = row
    instances_can_be = all(each == _NO_INSTANCE or each <= _MAX_INSTANCE for each in instances)
    return 0 < pid <= PID_MAX and instances_can_be


class Driver:
    """NVML, loaded and initialised at most once; not thread-safe by itself.

    NVML counts its initialisations, so that several of these, and other users of NVML in the
    program, do not disturb each other.
    """

    def __init__(self, library: str | None) -> None:
        self._library = library
        self._handle: ctypes.CDLL | None = None
        self._nvml: Any = None
        # NVML itself, once nvidia-ml-py has loaded it.
        self._functions: ctypes.CDLL | None = None
        # The room that the last list needed.
        self._capacities: dict[str, int] = {}
        self.is_open = False

    def open(self) -> None:
        """Load and initialise.

        Raises:
            NvmlCallFailed: It cannot be loaded or initialised; a later try may succeed.
        """
        if self.is_open:
            return
        try:
            import pynvml
        except ImportError:
            raise NvmlCallFailed("import pynvml", NvmlState.PACKAGE_MISSING) from None
        self._nvml = pynvml
        if self._library is not None and self._handle is None:
            # nvidia-ml-py asks for the SONAME, which the loader then knows.
            try:
                self._handle = ctypes.CDLL(self._library)
            except OSError as error:
                state = NvmlState.LIBRARY_NOT_FOUND
                raise NvmlCallFailed("dlopen", state, str(error)) from None
        self.call("nvmlInitWithFlags", 0)
        # The loader knows it by this name now.
        self._functions = self._functions or ctypes.CDLL("libnvidia-ml.so.1")
        self.is_open = True

    def close(self) -> None:
        """Undo the initialisation; errors do not matter any more."""
        if self.is_open:
            self.is_open = False
            with contextlib.suppress(NvmlCallFailed):
                self.call("nvmlShutdown")

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
            raise self._failure(name, int(error.value)) from None
        except UnicodeDecodeError as error:
            # nvidia-ml-py decodes texts as UTF-8; the driver's may be anything.
            return error.object.decode("utf-8", "backslashreplace")

    def listed(self, name: str, handle: Any) -> list[tuple[int, int, int, int]]:
        """Call a function that lists processes, in the newest version that gives possible rows.

        Returns:
            Pid, memory in bytes, GPU instance and compute instance of each.

        Raises:
            NvmlCallFailed: It failed, or the list grew each time.
        """
        try:
            rows = self._filled(f"{name}_v3", _PROCESS, handle, room_bytes=_MAX_PROCESS_BYTES)
        except NvmlCallFailed as failure:
            if failure.state is not NvmlState.FUNCTION_NOT_FOUND:
                raise
        else:
            if all(map(_can_be, rows)):
                return rows
        return self._filled(f"{name}_v2", _PROCESS, handle)

    def sampled(
        self, handle: Any, since_us: int, *, is_busy: bool
    ) -> list[tuple[int, int, int, int, int, int]]:
        """Return the samples of utilisation of a device's processes since a time.

        Args:
            handle: The device.
            since_us: Samples of later times are wanted, Unix microseconds.
            is_busy: Whether the device may be busy.

        Returns:
            Pid, time in microseconds, SM, memory, encoder, decoder of each.

        Raises:
            NvmlCallFailed: It failed.
        """
        failed: NvmlCallFailed | None = None
        rows = []
        try:
            rows = self._filled(UTILIZATION, _SAMPLE, handle, since_us)
        except NvmlCallFailed as failure:
            failed = failure
        # On Blackwell the older function has SM 0 for all processes (HAMi-core #218); the newer
        # one, from driver 550 on, has the figures.
        may_be_newer = failed is None or failed.state in _NO_SAMPLES
        if is_busy and may_be_newer and not any(row[2] for row in rows):
            try:
                newer = self._filled(_NEWER_UTILIZATION, _NEWER_SAMPLE, handle, since_us)
                return [(pid, at_us, *percents) for at_us, pid, *percents in newer]
            except NvmlCallFailed as failure:
                failed = failed if failure.state in _NO_SAMPLES else failure
        if failed is not None:
            raise failed
        return rows

    def _filled(
        self,
        name: str,
        entry: struct.Struct,
        handle: Any,
        since_us: int | None = None,
        room_bytes: int = 0,
    ) -> list[Any]:
        """Call a function that fills an array, with room for larger entries if that is given.

        nvidia-ml-py makes several objects of each entry, which on a node with a thousand processes
        costs more than the driver.
        """
        function = getattr(self._functions, name, None)
        if function is None:
            raise NvmlCallFailed(name, NvmlState.FUNCTION_NOT_FOUND)
        capacity = self._capacities.get(name, _FIRST_CAPACITY)
        for _ in range(_GROWTH_TRIES):
            count = ctypes.c_uint(capacity)
            memory = ctypes.create_string_buffer(capacity * max(entry.size, room_bytes))
            if since_us is None:
                code = function(handle, ctypes.byref(count), memory)
            elif name == UTILIZATION:
                since = ctypes.c_ulonglong(since_us)
                code = function(handle, memory, ctypes.byref(count), since)
            else:
                address = ctypes.addressof(memory)
                wanted = _NEWER_REQUEST.pack(_NEWER_VERSION, capacity, since_us, address)
                request = ctypes.create_string_buffer(wanted, len(wanted))
                code = function(handle, request)
                count.value = _NEWER_REQUEST.unpack(request)[1]
            state = state_of(code)
            if state is NvmlState.OK:
                self._capacities[name] = capacity
                filled = memory.raw[: min(count.value, capacity) * entry.size]
                return list(entry.iter_unpack(filled))
            if state is not NvmlState.INSUFFICIENT_SIZE:
                break
            capacity = min(max(count.value, capacity) * 3 // 2, _MAX_CAPACITY)
        raise self._failure(name, code)

    def _failure(self, call: str, code: int) -> NvmlCallFailed:
        state = state_of(code)
        detail = str(self._nvml.NVMLError(code)) if state is NvmlState.FAILED else None
        return NvmlCallFailed(call, state, detail)
