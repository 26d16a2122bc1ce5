"""Building the fake libnvidia-ml.so.1 and changing what it plays; scene.h has the file's format."""

import os
import subprocess
from pathlib import Path

DIRECTORY = Path(__file__).parent
STATE = "FAKE_NVML_STATE"


def build(directory: Path) -> Path:
    """Compile the library into a directory, which LD_LIBRARY_PATH may name; returns its path."""
    command = ["make", "--silent", f"BUILD={directory}"]
    done = subprocess.run(command, cwd=DIRECTORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "libnvidia-ml.so.1"


class FakeDriver:
    """The driver that programs with this environment see; not loaded until `play` is called."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library = library
        self.state = state
        self.lines: tuple[str, ...] = ()
        self.was_unloaded = False

    def play(self, *lines: str) -> None:
        """Make these lines the scene, in one step."""
        self.lines = lines
        new = self.state.with_suffix(".new")
        data = "".join(f"{line}\n" for line in ("driver 570.0-fake", *lines))
        new.write_bytes(data.encode("utf-8", "surrogateescape"))
        new.replace(self.state)

    def add(self, *lines: str) -> None:
        """Play the same with more lines."""
        self.play(*self.lines, *lines)

    def unload(self) -> None:
        """Take the driver away."""
        self.was_unloaded = True
        self.state.unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """The environment of a program that shall find this driver by itself."""
        paths = [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(filter(None, paths)),
            STATE: str(self.state),
        }
