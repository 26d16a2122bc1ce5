"""`hamiregion run` where /proc hides processes: an ordinary user's killed program frees its memory.

So is /proc mounted on many machines that people share, and in containers without CAP_SYS_PTRACE.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.containers import children_of
from support.process import finished, piped
from support.run_scene import RunScene
from support.wait import PATIENCE_S

from libhamiregion import create_region, open_region
from libhamiregion.units import MIB

pytestmark = pytest.mark.root

NOBODY = 65534
SUCCESS, OUT_OF_MEMORY, NOT_PERMITTED = 0, 2, 800
# In a mount namespace of its own; what follows runs as an ordinary user.
HIDING = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
MOUNTS = ("unshare", "--mount", "--propagation", "private")
PID_NAMESPACE = (*MOUNTS, "--pid", "--fork", "--kill-child")
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"),
)

# One that is process 1 of its namespace: a context, 400 MiB, and it waits.
FIRST = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
codes = [
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(400 << 20)),
]
print(json.dumps([os.getpid(), *codes]), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def scene(fake_libraries, public_directory) -> Iterator[RunScene]:
    """A machine whose driver, and whose directory of runs, an ordinary user may use."""
    driver = public_directory / "driver"
    shutil.copytree(fake_libraries, driver, ignore=shutil.ignore_patterns(".lock"), symlinks=True)
    driver.chmod(0o755)
    place = public_directory / "scene"
    place.mkdir()
    made = RunScene(driver, place)
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    with contextlib.closing(made):
        yield made


def hidden(*command: str, pid_namespace: bool = False) -> list[str]:
    """The command as an ordinary user, where /proc hides the others; skips where that cannot be."""
    inside = [*(PID_NAMESPACE if pid_namespace else MOUNTS), "sh", "-c", HIDING, "sh", *AS_NOBODY]
    tried = finished([*inside, sys.executable, "-c", "import libhamiregion, click"])
    if tried.returncode != 0:
        pytest.skip(f"no ordinary user can run this here: {tried.stderr.strip()[-200:]}")
    return [*inside, *command]


def ordinary_python() -> str:
    """A Python that the user may start as well; that of the tests can lie in root's directory."""
    for path in (sys.executable, "/usr/bin/python3"):
        tried = subprocess.run([*AS_NOBODY, "test", "-x", path], capture_output=True, check=False)
        if tried.returncode == 0:
            return path
    pytest.skip("no ordinary user can start a Python here")


class FirstProcess:
    """A program under a run's budget that is process 1 of a pid namespace of its own."""

    def __init__(self, scene: RunScene, region: Path) -> None:
        program = (ordinary_python(), "-c", FIRST)
        self._process = piped(
            hidden(*scene.command("--region", str(region), "--", *program), pid_namespace=True),
            env=scene.environment(),
            stderr=subprocess.PIPE,
        )
        self.pid, *self.codes = json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        """End it by SIGKILL, as the first process of its namespace."""
        (host_pid,) = children_of(self._process.pid)
        os.kill(host_pid, signal.SIGKILL)
        self._process.communicate(timeout=PATIENCE_S)

    def end(self) -> str:
        """Let it end; what it has said."""
        return self._process.communicate("\n", timeout=PATIENCE_S)[1]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_of_two_that_are_process_1_the_second_is_refused_while_the_first_lives(
    scene, public_directory
):
    """Neither takes the other's slot: the limit would hold for one of them only."""
    path = public_directory / "team.cache"
    create_region(path, memory_limits=("1GiB",))
    path.chmod(0o666)
    with contextlib.ExitStack() as started, open_region(path) as region:

        def start() -> FirstProcess:
            return started.enter_context(contextlib.closing(FirstProcess(scene, path)))

        first = start()
        assert (first.pid, first.codes) == (1, [SUCCESS] * 4)
        used_bytes = region.memory_used(0)
        assert used_bytes > 400 * MIB

        second = start()
        assert second.pid == 1
        assert second.codes[1] == NOT_PERMITTED
        assert second.codes[3] == NOT_PERMITTED
        assert "a live process of another pid namespace has this process's pid" in second.end()
        assert region.memory_used(0) == used_bytes

        # Both together would not fit: what the killed one had is given back at once.
        first.kill()
        third = start()
        assert (third.pid, third.codes) == (1, [SUCCESS] * 4)
        assert region.memory_used(0) == used_bytes
        assert len(region.snapshot().processes) == 1
