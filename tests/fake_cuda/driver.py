"""Building the fake libcuda.so.1 beside the fake libnvidia-ml.so.1, and GPUs of a test's own."""

import os
import subprocess
from pathlib import Path

from fake_nvml.driver import build as build_nvml

DIRECTORY = Path(__file__).parent
GIB = 1 << 30
MIB = 1 << 20


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
