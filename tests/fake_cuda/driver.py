"""Building the fake libcuda.so.1 beside the fake libnvidia-ml.so.1, and GPUs of a test's own."""

import os
import signal
import struct
import subprocess
from pathlib import Path

from fake_nvml.driver import build as build_nvml

DIRECTORY = Path(__file__).parent
FUTEX_TID_MASK = 0x3FFFFFFF


def build(directory: Path, optimise: str = "-O2") -> Path:
    """Compile both libraries into a directory, which LD_LIBRARY_PATH may name; returns it."""
    command = ["make", "--silent", f"BUILD={directory}", f"OPTIMISE={optimise}"]
    done = subprocess.run(command, cwd=DIRECTORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    build_nvml(directory)
    return directory


def gpu_uuid(index: int) -> str:
    """The uuid of one of the GPUs, as NVML has it."""
    return f"GPU-facec0da-0000-0000-0000-{index + 1:012x}"


def stop(pid: int, state: Path) -> None:
    """Stop a child while it does not hold the lock of its GPUs, for which all others would wait.

    Args:
        pid: The child.
        state: The file of the GPUs; if there is none, the GPUs are real and have no such lock.
    """
    while True:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        # struct state begins with a word, then the lock with the id of the thread that holds it.
        word = struct.unpack_from("8xI", state.read_bytes())[0] if state.is_file() else 0
        if not Path(f"/proc/{pid}/task/{word & FUTEX_TID_MASK}").exists():
            return
        os.kill(pid, signal.SIGCONT)


class FakeGpus:
    """GPUs that all processes with one environment share."""

    def __init__(self, libraries: Path, state: Path, **settings: int) -> None:
        """
        Args:
            libraries: Where `build` has put the libraries.
            state: The file that the GPUs' memory and work are kept in; made on first use.
            settings: The variables of state.h, without FAKE_CUDA_ and in lower case.
        """
        self.libraries = libraries
        self.state = state
        self.settings = {f"FAKE_CUDA_{name.upper()}": str(settings[name]) for name in settings}

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a program that shall find these GPUs by itself."""
        paths = [str(self.libraries), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
            "FAKE_CUDA_STATE": str(self.state),
            **self.settings,
            **more,
        }
