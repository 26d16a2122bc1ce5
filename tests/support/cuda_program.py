"""CUDA programs that tests start, each with an environment of its own, and what they are told."""

import contextlib
import json
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.process import piped

CHILD = Path(__file__).with_name("cuda_calls.py")

OUT = "out"


def inout(number: int) -> str:
    """An argument that the function reads and writes."""
    return f"inout:{number}"


def room(size: int) -> str:
    """Room for a structure that the function writes; it comes back as hexadecimal digits."""
    return f"room:{size}"


def packed(form: str, *values: int) -> str:
    """A structure that the function reads, by the form that `struct` has for it."""
    return f"bytes:{struct.pack(form, *values).hex()}"


SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
INVALID_HANDLE = 400
NVML_NOT_FOUND = 6


class CudaProgram(contextlib.AbstractContextManager):
    """One process. `call` gives codes and what was written, `do` asserts that the code is 0."""

    def __init__(self, environment: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        self.process = piped(
            [*prefix, sys.executable, "-I", "-S", str(CHILD)],
            env=dict(environment),
            stderr=subprocess.PIPE,
        )
        self.pid = self.process.pid

    def calls(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Do several calls; one answer for each."""
        self.process.stdin.write(json.dumps(calls) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"it has ended: {self.process.communicate()}")
        return json.loads(line)

    def call(self, *call: Any) -> list[Any]:
        """Do one call: its code, and the numbers that it has written."""
        return self.calls(call)[0]

    def do(self, *call: Any) -> Any:
        """Do a call that succeeds: the number that it has written, or all if there are more."""
        code, *outs = self.call(*call)
        assert code == SUCCESS, f"{call[0]} gives {code}"
        return outs[0] if len(outs) == 1 else outs

    def start(self, device: int = 0) -> "CudaProgram":
        """Make the primary context of a device the current one."""
        self.do("cuInit", 0)
        self.do("cuCtxSetCurrent", self.do("cuDevicePrimaryCtxRetain", OUT, device))
        return self

    def kernel(self, name: str = "busy_1ms") -> int:
        """A kernel that takes as long as its name says."""
        module = self.do("cuModuleLoadData", OUT, "text:any image")
        return self.do("cuModuleGetFunction", OUT, module, f"text:{name}")

    def allocate(self, size: int) -> int:
        """cuMemAlloc, which succeeds."""
        return self.do("cuMemAlloc_v2", OUT, size)

    def free(self, address: int) -> None:
        self.do("cuMemFree_v2", address)

    def info(self) -> tuple[int, int]:
        """cuMemGetInfo: free, total."""
        free, total = self.do("cuMemGetInfo_v2", OUT, OUT)
        return free, total

    def nvml_device(self, index: int) -> int:
        """NVML's handle of a device, with NVML initialised."""
        self.do("nvmlInit_v2")
        return self.do("nvmlDeviceGetHandleByIndex_v2", index, OUT)

    def nvml_memory(self, index: int) -> tuple[int, int, int]:
        """nvmlDeviceGetMemoryInfo: total, free, used."""
        text = self.do("nvmlDeviceGetMemoryInfo", self.nvml_device(index), room(24))
        total, free, used = struct.unpack("3Q", bytes.fromhex(text))
        return total, free, used

    def nvml_processes(self, index: int) -> dict[int, int]:
        """What each process uses of a device, by its pid."""
        form, most = "I4xQ2I", 64
        count, text = self.do(
            "nvmlDeviceGetComputeRunningProcesses_v3",
            self.nvml_device(index),
            inout(most),
            room(most * struct.calcsize(form)),
        )
        entries = list(struct.iter_unpack(form, bytes.fromhex(text)))[:count]
        return {pid: used for pid, used, _, _ in entries}

    def nvml_samples(self, index: int, since_us: int = 0) -> dict[int, int]:
        """How busy each process keeps a device, in percent."""
        form, most = "I4xQ4I", 100
        code, text, count = self.call(
            "nvmlDeviceGetProcessUtilization",
            self.nvml_device(index),
            room(most * struct.calcsize(form)),
            inout(most),
            since_us,
        )
        if code == NVML_NOT_FOUND:
            return {}
        assert code == SUCCESS
        entries = list(struct.iter_unpack(form, bytes.fromhex(text)))[:count]
        return {pid: percent for pid, _, percent, _, _, _ in entries}

    def kill(self, *_: object) -> None:
        """SIGKILL it, and wait for its end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    __exit__ = kill

    def end(self) -> str:
        """Let it end by itself, with exit status 0: what it has said on stderr."""
        _, said = self.process.communicate()
        assert self.process.returncode == 0, said
        return said
