"""A process inside a container, driven by lines on its standard input.

Each command is one line, each answer one line of JSON. `spawn` gives a child of the same kind,
which answers under its own pid: commands may start with `@<pid>` to be passed on to that child.
"""

import json
import mmap
import os
import signal
import sys
import threading
import time
from typing import Any

from libhamiregion import Region, Slot, open_region


class Container:
    """What one process of a container can be told to do."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.slots: list[Slot] = []
        self.libraries: list[mmap.mmap] = []
        self.locks: list[Any] = []
        self.children: dict[int, tuple[Any, Any]] = {}

    def pid(self) -> int:
        return os.getpid()

    def map(self, path: str, mode: str = "w") -> int:
        self.regions.append(open_region(path, writable=mode == "w"))
        return os.getpid()

    def load(self, path: str) -> int:
        """Map a file, as a program does with its libraries."""
        with open(path, "rb") as file:  # noqa: PTH123
            self.libraries.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return os.getpid()

    def map_bytes(self, path: str, nbytes: str) -> int:
        """Map the first bytes of a region, as a libvgpu that knows another layout does."""
        with open(path, "r+b") as file:  # noqa: PTH123
            self.libraries.append(mmap.mmap(file.fileno(), int(nbytes)))
        return os.getpid()

    def lock(self) -> int:
        """Hold the lock of the region mapped last."""
        self.locks.append(self.regions[-1].lock())
        self.locks[-1].__enter__()
        return os.getpid()

    def unlock(self) -> int:
        self.locks.pop().__exit__(None, None, None)
        return os.getpid()

    def lock_again_and_again(self) -> int:
        """Take the lock and give it back, half of the time each, until killed."""

        def work() -> None:
            while True:
                with self.regions[-1].lock(10):
                    time.sleep(0.001)
                time.sleep(0.001)

        threading.Thread(target=work, daemon=True).start()
        return os.getpid()

    def attach(self, path: str) -> int:
        self.map(path)
        self.slots.append(self.regions[-1].attach())
        return self.slots[-1].pid

    def charge(self, nbytes: str, kind: str = "data") -> int:
        self.slots[-1].charge(0, int(nbytes), kind)  # type: ignore[arg-type]
        return int(nbytes)

    def close(self) -> None:
        for slot in self.slots:
            slot.detach()
        for region in self.regions:
            region.close()
        self.slots, self.regions = [], []

    def fork(self) -> int:
        """A child that keeps what is mapped, and does nothing."""
        pid = os.fork()
        if pid == 0:
            # What this process is told must not reach the child as well.
            os.close(0)
            while True:
                signal.pause()
        return pid

    def spawn(self, last_pid: str = "") -> int:
        """A child that takes commands; `last_pid` decides which pid it gets."""
        if last_pid:
            with open("/proc/sys/kernel/ns_last_pid", "w") as file:  # noqa: PTH123
                file.write(last_pid)
        to_child, to_parent = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(to_child[0], 0)
            os.dup2(to_parent[1], 1)
            os.closerange(3, 256)
            serve(Container())
            os._exit(0)
        os.close(to_child[0])
        os.close(to_parent[1])
        self.children[pid] = (os.fdopen(to_child[1], "w"), os.fdopen(to_parent[0]))
        return pid

    def kill(self, pid: str) -> int:
        """Kill a child and wait until its pid is free."""
        os.kill(int(pid), signal.SIGKILL)
        os.waitpid(int(pid), 0)
        self.children.pop(int(pid), None)
        return int(pid)

    def zombie(self, pid: str) -> int:
        """Kill a child and do not wait for it."""
        os.kill(int(pid), signal.SIGKILL)
        while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z":  # noqa: PTH123, SIM115
            time.sleep(0.001)
        return int(pid)

    def execute(self) -> None:
        """Become another program, with the same pid."""
        os.execv("/bin/sh", ["sh", "-c", "echo '{\"answer\": 0}'; read line"])

    def leave_first_thread(self) -> int:
        """Go on in a second thread alone, as pthread_exit() in main() does."""
        import ctypes

        threading.Thread(target=self._wait).start()
        sys.stdout.write(json.dumps({"answer": os.getpid()}) + "\n")
        sys.stdout.flush()
        ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
        return 0

    def _wait(self) -> None:
        while True:
            time.sleep(3600)

    def thread(self) -> int:
        """The pid of a second thread."""
        started = threading.Event()
        numbers: list[int] = []

        def work() -> None:
            numbers.append(threading.get_native_id())
            started.set()
            self._wait()

        threading.Thread(target=work, daemon=True).start()
        started.wait()
        return numbers[0]


def serve(container: Container) -> None:
    for line in os.fdopen(0, closefd=False):
        target, *words = line.split()
        if target.startswith("@"):
            commands, answers = container.children[int(target[1:])]
            commands.write(" ".join(words) + "\n")
            commands.flush()
            answer = answers.readline()
        else:
            answer = json.dumps({"answer": getattr(container, target)(*words)}) + "\n"
        sys.stdout.write(answer)
        sys.stdout.flush()


def main() -> None:
    serve(Container())


if __name__ == "__main__":
    main()
