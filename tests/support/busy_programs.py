"""Programs that keep fake GPUs busy, and how long the GPUs have worked."""

import contextlib
import subprocess
import time
from pathlib import Path

from support.cuda_program import OUT, CudaProgram
from support.limited import Limited


class BusyProgram(contextlib.AbstractContextManager):
    """A program under a region that launches until it is killed.

    Args:
        scene: The region.
        programs: Where the C programs are.
        kernel: Its name says how long one takes; see tests/fake_cuda/launches.c.
        style: "kernel"; "graph": of ten kernels each; "unknown": kernels in a context that the
            library does not see being made.
        pending: How many launches it makes before it waits for the device.
        device: On which it does.
    """

    def __init__(
        self,
        scene: Limited,
        programs: Path,
        kernel: str,
        *,
        style: str = "kernel",
        pending: int = 20,
        device: int = 0,
        **more: str,
    ) -> None:
        arguments = [style, kernel, "1", str(pending), str(device)]
        self.process = subprocess.Popen(
            [str(programs / "busy"), *arguments],
            env=scene.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "started\n"
        self.pid = self.process.pid

    def kill(self) -> str:
        """SIGKILL it; what it has said on stderr."""
        self.process.kill()
        return self.process.communicate()[1]

    def __exit__(self, *_: object) -> None:
        self.kill()


class Observer:
    """Tells how busy the GPUs are, by their own account."""

    def __init__(self, program: CudaProgram) -> None:
        self.program = program

    def worked_ns(self, device: int = 0, pid: int = 0) -> int:
        """How long a GPU has worked so far: for one process, or for all."""
        return self.program.do("fake_cuda_busy_ns", device, pid, OUT)

    def busy_percent(self, over_s: float, device: int = 0, pid: int = 0) -> float:
        """How busy a GPU is from now on."""
        begun_ns, before_ns = time.monotonic_ns(), self.worked_ns(device, pid)
        time.sleep(over_s)
        worked_ns = self.worked_ns(device, pid) - before_ns
        percent = 100 * worked_ns / (time.monotonic_ns() - begun_ns)
        print(f"device {device}, process {pid or 'any'}: {percent:.0f} %")  # shown if a test fails
        return percent
