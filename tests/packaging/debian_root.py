"""A root directory of Debian's newest suite, and commands in it.

mmdebstrap makes it once, below the cache; it is used again until it is removed. Commands run there
with /dev/shm and /tmp of their own, in the pid namespace of this machine. Standard library only.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

SUITE = "unstable"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TOOLS = ("mmdebstrap", "unshare", "chroot", "mount")
# $1 is the root, the rest a command. Everything is mounted in a namespace that ends with it.
ENTER = """
root=$1 certificates=$2
shift 2
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -o bind,ro /sys "$root/sys"
if [ -e "$certificates" ]; then mount -o bind,ro "$certificates" "$root$certificates"; fi
cat /etc/resolv.conf >"$root/etc/resolv.conf"
exec chroot "$root" "$@"
"""


class NoRoot(Exception):
    """The root directory cannot be had here, or a command in it failed; a sentence says why."""


class DebianRoot:
    """A root directory with these packages, for this process alone while it lives.

    Args:
        packages: Of Debian's newest suite.

    Raises:
        NoRoot: This machine cannot make it.
    """

    def __init__(self, *packages: str) -> None:
        if os.geteuid() != 0:
            raise NoRoot("only root can enter a root directory")
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise NoRoot(f"needs {', '.join(missing)} (on Debian: apt install mmdebstrap)")
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.path = Path(cache, "hamiregion-newest", SUITE)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Whoever else uses it lays things out there as well.
        self._lock = self.path.with_name("lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if not self.path.exists():
            self._make(packages)

    def _make(self, packages: tuple[str, ...]) -> None:
        unfinished = self.path.with_name(f".{SUITE}-{os.getpid()}")
        command = [
            "mmdebstrap",
            *("--mode=root", "--variant=apt", "--format=directory"),
            # The lists of a mirror that stands still are past their time, and signed all the same.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            f"--include={','.join(('ca-certificates', *packages))}",
            *(SUITE, str(unfinished)),
        ]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise NoRoot(f"mmdebstrap failed:\n{done.stdout[-2000:]}")
        unfinished.rename(self.path)

    def run(self, *command: str, cwd: str = "/", timeout_s: float = 600, show: bool = False) -> str:
        """Run a command there, as root.

        Args:
            command: The words.
            cwd: Where, in the root directory.
            timeout_s: In seconds; then it is ended.
            show: Let it print what it says.

        Returns:
            What it said, both streams; nothing with show.

        Raises:
            NoRoot: It failed, with what it said.
        """
        enter = [
            *("unshare", "--mount", "--propagation=private"),
            *("sh", "-e", "-c", ENTER, "sh", str(self.path), str(CERTIFICATES)),
            *("env", "--ignore-environment", f"--chdir={cwd}", *_environment(), *command),
        ]
        try:
            done = subprocess.run(
                enter,
                stdin=subprocess.DEVNULL,
                stdout=None if show else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NoRoot(f"not ended within {timeout_s:.0f} s: {' '.join(command)}") from None
        if done.returncode != 0:
            raise NoRoot(f"exit status {done.returncode}: {' '.join(command)}\n{done.stdout or ''}")
        return done.stdout or ""


def _environment() -> list[str]:
    """What of the caller's matters for downloads, and nothing else of it."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name == "PIP_INDEX_URL" or name.lower() in {"http_proxy", "https_proxy", "no_proxy"}
    }
    own = {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PIP_CERT": str(CERTIFICATES),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }
    return [f"{name}={value}" for name, value in (passed | own).items()]
