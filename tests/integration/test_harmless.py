"""CI runs the suite by `tests/harmless`: only the tests' own places can be written there."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.wait import PATIENCE_S

TREE = Path(__file__).parents[2]
HARMLESS = TREE / "tests" / "harmless"


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("findmnt") is None:
        return False
    command = ["unshare", "--mount", "--cgroup", "true"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(
    not can_make_namespaces(), reason="needs root, util-linux and mount namespaces"
)

# Opens for appending, and appends nothing: were it writable, no harm would be done either.
LOOK = """
import errno, json, os, tempfile

def refusal(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    except OSError as error:
        return errno.errorcode[error.errno]

writable = []
for line in open("/proc/self/mountinfo"):
    point = line.split()[4].encode().decode("unicode_escape")
    # What another mount hides has that one's flags here, and cannot be reached.
    if os.path.exists(point) and not os.statvfs(point).f_flag & os.ST_RDONLY:
        writable.append(point)
for directory in (tree, tempfile.gettempdir(), "/dev/shm"):
    tempfile.NamedTemporaryFile(dir=directory).close()
print(json.dumps({
    "passwd": refusal("/etc/passwd"),
    "null": refusal("/dev/null"),
    "writable": writable,
    "temporary": tempfile.gettempdir(),
    "cgroup": [line.strip() for line in open("/proc/self/cgroup") if line.startswith("0::")],
}))
"""


def harmless(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [HARMLESS, *command], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def test_nothing_but_the_tests_own_places_can_be_written() -> None:
    done = harmless(sys.executable, "-c", f"tree = {str(TREE)!r}\n{LOOK}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["passwd"] == errno.errorcode[errno.EROFS]
    assert found["null"] is None
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    mine = (str(TREE), caches, found["temporary"], "/dev/shm")
    outside = [each for each in found["writable"] if not each.startswith(mine)]
    # Only its own cgroup, which is the root of what it sees.
    assert [each for each in outside if not each.startswith("/sys/fs/cgroup")] == []
    assert len(set(outside)) == (found["cgroup"] == ["0::/"])
    assert not Path(found["temporary"]).exists(), "a fresh directory, gone at the end"


def test_the_status_is_the_commands_and_what_it_leaves_running_is_ended() -> None:
    # The sleeper holds the pipe: that the answer comes shows that it has ended.
    until_it_sleeps = "until [ $(cat /proc/$!/comm) = sleep ]; do sleep 0.01; done"
    done = harmless("sh", "-c", f"sleep 1000 & {until_it_sleeps}; echo $!; exit 3")
    assert done.returncode == 3
    assert f"left running and ended: {done.stdout.strip()} sleep 1000" in done.stderr
