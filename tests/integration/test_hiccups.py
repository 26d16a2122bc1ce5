"""`make hiccups` freezes what it runs, nothing else, and leaves nothing frozen."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hiccups import KINDS, Freezer, Kind
from support.wait import PATIENCE_S, eventually

TOOL = Path(__file__).parents[1] / "hiccups.py"
# Both end when their input ends, which a frozen one does not see.
COMMANDS = ("sh", "-c", "cat & cat; exit 3")


def freezer_of(kind: Kind) -> Freezer:
    try:
        return Freezer(kind)
    except OSError as error:
        pytest.skip(f"no cgroup can be frozen by {kind.file}: {error}")


def is_frozen(cgroup: Path) -> bool:
    """Whether all that is in it stands still."""
    events = cgroup / "cgroup.events"
    if events.exists():
        return "frozen 1" in events.read_text()
    return (cgroup / "freezer.state").read_text() == "FROZEN\n"


@contextlib.contextmanager
def hiccups(*command: str) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """The tool at work, and the cgroup that it says it has made."""
    tool = subprocess.Popen(
        [sys.executable, TOOL, "--seed", "1", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tool.stderr is not None
        said = tool.stderr.readline()
        assert "seed 1" in said
        yield tool, Path(said.split()[-1])
    finally:
        tool.kill()
        # The command and what removes the cgroup hold these too.
        tool.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.file_system)
def test_what_is_frozen_goes_on_or_is_ended(kind: Kind) -> None:
    freezer = freezer_of(kind)
    try:
        enter = 'echo 0 > "$0" && exec cat'
        process = subprocess.Popen(
            ["sh", "-c", enter, freezer.cgroup / "cgroup.procs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"1")
        process.stdin.flush()
        assert process.stdout.read(1) == b"1"
        for _ in range(2):
            freezer.freeze()
            eventually(lambda: is_frozen(freezer.cgroup))
            freezer.thaw()
            eventually(lambda: not is_frozen(freezer.cgroup))
        (freezer.cgroup / "below").mkdir()
        freezer.freeze()
    finally:
        freezer.remove()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert not freezer.cgroup.exists()
    process.communicate()


@pytest.mark.parametrize("ending", ["end", "SIGTERM", "SIGKILL"])
def test_it_thaws_and_ends_all_however_it_ends(ending: str) -> None:
    freezer_of(KINDS[0]).remove()
    with hiccups(*COMMANDS) as (tool, cgroup):
        eventually(lambda: is_frozen(cgroup))
        if ending != "end":
            tool.send_signal(signal.Signals[ending])
        # All that has its descriptors open is gone when this returns.
        _, said = tool.communicate(timeout=PATIENCE_S)
        assert not cgroup.exists()
        status = {"end": 3, "SIGTERM": 128 + signal.SIGTERM, "SIGKILL": -signal.SIGKILL}[ending]
        assert tool.returncode == status
        assert ("it stood still" in said) == (ending != "SIGKILL")


def test_where_nothing_can_be_frozen_it_says_so_and_runs_nothing() -> None:
    """Without root it can make no cgroup."""
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3")
    # Where all may run it, unlike that of an environment below root's home.
    system = {"PATH": "/usr/bin:/bin"}
    try:
        subprocess.run([*user, "-c", ""], check=True, capture_output=True, cwd="/", env=system)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs root, setpriv and a Python that all may run")
    done = subprocess.run(
        [*user, "-", "echo", "it ran"],
        # That user need not be able to read the tree.
        input=TOOL.read_text(),
        cwd="/",
        env=system,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no cgroup can be frozen here, which needs root" in done.stderr
