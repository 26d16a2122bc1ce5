"""A process inside a container, as `container_process`, that can be made to look odd."""

import itertools
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

import container_process
from container_process import Container, serve

from libhamiregion import Layout

# A launch's time in Unix seconds, of a clock that runs fast.
FIRST_S = 1_790_000_000
KERNEL_TIME = Layout.V1_2.offsets["last_kernel_time"]


class OddContainer(Container):
    """What else one can be told to do."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def load(self, path: str) -> int:
        """Have a library mapped as the loader does."""
        with Path(path).open("rb") as file:
            code = mmap.PROT_READ | mmap.PROT_EXEC
            self.kept.append(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=code))
        return os.getpid()

    def map_bytes(self, path: str, nbytes: str) -> int:
        """Map the first bytes of a region, as a libvgpu that knows another layout does."""
        with Path(path).open("r+b") as file:
            self.kept.append(mmap.mmap(file.fileno(), int(nbytes)))
        return os.getpid()

    def become(self, uid: str) -> int:
        """Go on as another user."""
        os.setuid(int(uid))
        return os.geteuid()

    def lock(self) -> int:
        """Hold the lock of the region mapped last."""
        self.kept.append(self.regions[-1].lock())
        self.kept[-1].__enter__()
        return os.getpid()

    def unlock(self) -> int:
        self.kept.pop().__exit__(None, None, None)
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

    def go_on(self, what: str, path: str) -> int:
        """Allocate, or store the time of launches, until killed: whatever the slot's status says.

        As a process of HAMi 2.10 does where no device has an SM limit.
        """

        fd = os.open(path, os.O_WRONLY)

        def work() -> None:
            for turn in itertools.count(1):
                time.sleep(0.02)
                if what == "allocating":
                    self.slots[-1].charge(0, 1 << 12)
                else:
                    os.pwrite(fd, (FIRST_S + turn).to_bytes(8, "little"), KERNEL_TIME)

        threading.Thread(target=work, daemon=True).start()
        return os.getpid()

    def charge_on(self, device: str, nbytes: str, kind: str = "data") -> int:
        self.slots[-1].charge(int(device), int(nbytes), kind)  # type: ignore[arg-type]
        return int(nbytes)


def main() -> None:
    # Its children are of this kind too.
    container_process.Container = OddContainer  # type: ignore[misc]
    serve(OddContainer())


if __name__ == "__main__":
    main()
