"""A machine with two GPUs of the fake driver, on which programs run under budgets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fake_cuda.driver import FakeGpus
from fake_nvml.driver import STATE

from libhamiregion.run import cleaner
from libhamiregion.units import GIB
from support.command_line import COMMAND, checked, environment
from support.cuda_program import CHILD, CudaProgram
from support.process import finished, piped

PROGRAM = (sys.executable, "-I", "-S", str(CHILD))
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
# What this process may have of its own, and what would change what CUDA programs see.
OURS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "LD_PRELOAD", REGION)


class RunScene:
    """The machine. Runs lie in `base`, and nothing is written elsewhere."""

    def __init__(self, driver: Path, directory: Path) -> None:
        self.driver = driver
        self.base = directory / "session" / "hamiregion"
        self.base.parent.mkdir(mode=0o700)
        gpus = FakeGpus(driver, directory / "gpus", devices=2, memory=16 * GIB)
        self._driver_says = {"FAKE_CUDA_STATE": str(gpus.state), **gpus.settings}
        self._nvml = directory / "nvml-scene"
        self._started: list[subprocess.Popen[str]] = []
        # None of these clean up here: those that do are started later.
        self._before = _pids()

    def play(self, *lines: str) -> None:
        """Have NVML tell this, and no program use CUDA."""
        self._nvml.write_text("".join(f"{line}\n" for line in ("driver 570.0-fake", *lines)))
        self._driver_says = {STATE: str(self._nvml)}

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of somebody who starts programs there."""
        said = {
            "XDG_RUNTIME_DIR": str(self.base.parent),
            **self._driver_says,
            **more,
        }
        return {
            name: text for name, text in environment(said).items() if name not in {*OURS} - {*more}
        }

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `hamiregion run --driver … ARGUMENTS` to its end."""
        answer = finished(
            self.command(*arguments), env=self.environment(**more), stdin=subprocess.DEVNULL
        )
        return checked(answer)

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """Start it; ended with the scene."""
        process = piped(
            self.command(*arguments), env=self.environment(**more), stderr=subprocess.PIPE
        )
        self._started.append(process)
        return process

    def start_program(self, *options: str, **more: str) -> Program:
        """Start a CUDA program under a budget."""
        return Program(self.start(*options, "--", *PROGRAM, **more))

    def start_with(self, environment: dict[str, str]) -> CudaProgram:
        """Start a CUDA program with this environment; ended with the scene."""
        program = CudaProgram(environment)
        self._started.append(program.process)
        return program

    def command(self, *arguments: str) -> list[str]:
        return [*COMMAND, "run", "--driver", str(self.driver), *arguments]

    def directories(self) -> list[str]:
        """The names of the directories of runs."""
        return sorted(path.name for path in self.base.iterdir()) if self.base.is_dir() else []

    def cleaners(self) -> list[int]:
        """The processes that will clean up."""
        found = []
        now = _pids()
        # A number that has become free may be one of ours the next time.
        self._before &= now
        for pid in sorted(now - self._before):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if cleaner.__file__.encode() in words and str(self.base).encode() in words[-4]:
                found.append(pid)
        return found

    def close(self) -> None:
        """End what was started."""
        for process in self._started:
            process.kill()
            process.communicate()


def _pids() -> set[int]:
    return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}


class Program(CudaProgram):
    """A CUDA program that was started by a command."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid


def variables(text: str) -> dict[str, str]:
    """NAME=value, each ended by a NUL character as by `env -0` and in /proc."""
    pairs = (each.partition("=") for each in text.split("\0") if each)
    return {name: value for name, _, value in pairs}
