"""The GPUs of this machine, as NVML lists them.

NVML is called directly: nvidia-ml-py keeps one library for the whole program, and a caller of ours
may use it with another one than the driver named here.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import attrs

from .errors import LaunchError

if TYPE_CHECKING:
    from typing_extensions import Self

_SUCCESS = 0
_NOT_SUPPORTED = 3
_NOT_FOUND = 6
_FUNCTION_NOT_FOUND = 13
_TEXT_BYTES = 96


@attrs.frozen
class Gpu:
    """A device that CUDA can use: a whole GPU, or a MIG device of one.

    Attributes:
        index: The GPU's index in NVML, which nvidia-smi shows.
        uuid: ``GPU-…``, or ``MIG-…`` for a MIG device.
        name: The model; with the profile for a MIG device.
        memory_bytes: All of its memory; None if it shares the host's (unified memory).
        mig: Whether it is a MIG device.
        failure: Why the driver cannot use it; None if it can.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    mig: bool = False
    failure: str | None = None


class _Nvml:
    """NVML from one file; initialised and loaded while it is entered."""

    def __init__(self, library: str) -> None:
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError as error:
            raise LaunchError(f"the NVIDIA driver cannot be used: {error}") from None

    def __enter__(self) -> Self:
        try:
            self.call("nvmlInitWithFlags", ctypes.c_uint(0))
        except LaunchError:
            self._unload()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._nvml.nvmlShutdown()
        self._unload()

    def _unload(self) -> None:
        """Leave no library that the caller's own NVML would be taken for: their names are one."""
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(self._nvml._handle))

    def call(self, name: str, *arguments: Any, missing: tuple[int, ...] = ()) -> bool:
        """Call a function; False where it returns one of `missing`."""
        # A driver older than a function does not have it.
        function = getattr(self._nvml, name, None)
        code: int = _FUNCTION_NOT_FOUND if function is None else function(*arguments)
        if code in missing:
            return False
        if code != _SUCCESS:
            raise LaunchError(f"the NVIDIA driver does not answer: {name} gives {self._said(code)}")
        return True

    def _said(self, code: int) -> str:
        name = getattr(self._nvml, "nvmlErrorString", None)
        if name is None:
            return f"error {code}"
        name.restype = ctypes.c_char_p
        text: bytes = name(code)
        return f"error {code}, {text.decode('utf-8', 'replace')}"

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function whose answer is an unsigned int."""
        out = ctypes.c_uint()
        self.call(name, *arguments, ctypes.byref(out))
        return out.value

    def handle(self, name: str, *arguments: Any) -> ctypes.c_void_p | None:
        """Call a function whose answer is a device; None where there is none of that number."""
        out = ctypes.c_void_p()
        there = self.call(name, *arguments, ctypes.byref(out), missing=(_NOT_FOUND,))
        return out if there else None

    def text(self, name: str, device: ctypes.c_void_p) -> str:
        """Call a function whose answer is text."""
        out = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(name, device, out, ctypes.c_uint(_TEXT_BYTES))
        return out.value.decode("utf-8", "replace")

    def gpu(self, index: int, device: ctypes.c_void_p, *, mig: bool) -> Gpu:
        """A device as far as it answers: only a program that wants it needs the rest."""
        total_free_used = (ctypes.c_ulonglong * 3)()
        uuid = name = ""
        failure, has_memory = None, False
        try:
            name = self.text("nvmlDeviceGetName", device)
            uuid = self.text("nvmlDeviceGetUUID", device)
            argument = ctypes.byref(total_free_used)
            absent = (_NOT_SUPPORTED,)
            has_memory = self.call("nvmlDeviceGetMemoryInfo", device, argument, missing=absent)
        except LaunchError as error:
            failure = str(error)
        return Gpu(index, uuid, name, total_free_used[0] if has_memory else None, mig, failure)

    def devices(self, index: int) -> list[Gpu]:
        """The GPU of that index, or its MIG devices if it is divided."""
        try:
            return self._devices(index)
        except LaunchError as error:
            return [Gpu(index, "", "", None, failure=str(error))]

    def _devices(self, index: int) -> list[Gpu]:
        whole = self.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
        if whole is None:
            return []
        now, later = ctypes.c_uint(), ctypes.c_uint()
        order = (whole, ctypes.byref(now), ctypes.byref(later))
        absent = (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND)
        if not (self.call("nvmlDeviceGetMigMode", *order, missing=absent) and now.value):
            return [self.gpu(index, whole, mig=False)]
        found = []
        for slot in range(self.number("nvmlDeviceGetMaxMigDeviceCount", whole)):
            device = self.handle("nvmlDeviceGetMigDeviceHandleByIndex", whole, ctypes.c_uint(slot))
            if device is not None:
                found.append(self.gpu(index, device, mig=True))
        return found


def list_gpus(library: str) -> list[Gpu]:
    """List the devices of this machine in NVML's order, a divided GPU's MIG devices in its place.

    Args:
        library: The file libnvidia-ml.so.1.

    Raises:
        LaunchError: The driver does not answer.
    """
    with _Nvml(library) as nvml:
        count = nvml.number("nvmlDeviceGetCount_v2")
        return [gpu for index in range(count) for gpu in nvml.devices(index)]
