"""What a hostile container does to its directory while somebody scans it; until it is killed.

    python racing_container.py DIRECTORY VICTIM SEED

DIRECTORY is its own, VICTIM a region of somebody else's that it tries to have opened in its name.
Prints a line when it has begun.
"""

import contextlib
import os
import random
import sys
from pathlib import Path


def main(directory: Path, victim: Path, seed: int) -> None:
    chance = random.Random(seed)
    content = victim.read_bytes()
    names = [directory / f"{number}.cache" for number in range(3)]

    def own_region(path: Path) -> None:
        made = directory / "new"
        made.write_bytes(content)
        made.rename(path)

    def link(path: Path) -> None:
        made = directory / "link"
        made.symlink_to(victim)
        made.rename(path)

    def fifo_in_its_place(path: Path) -> None:
        made = directory / "pipe"
        os.mkfifo(made)
        made.rename(path)

    def fifo(path: Path) -> None:
        os.mkfifo(path)

    def subdirectory(path: Path) -> None:
        path.mkdir()

    def truncate(path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "wb") as file:
            file.truncate(chance.choice((0, 4096, 2_000_000, len(content))))

    def unlink(path: Path) -> None:
        path.unlink()

    def remove_directory(path: Path) -> None:
        path.rmdir()

    def scribble(path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        os.pwrite(descriptor, os.urandom(8), chance.choice((0, 4, 56, 64, 1600, 2_008_896)))
        os.close(descriptor)

    def time_travel(path: Path) -> None:
        when = chance.choice((0, 1 << 33, 1 << 40))
        os.utime(path, (when, when), follow_symlinks=False)

    def swap(path: Path) -> None:
        path.rename(chance.choice(names))

    def shut(path: Path) -> None:
        path.chmod(chance.choice((0, 0o666)))

    deeds = (
        own_region,
        own_region,
        link,
        link,
        fifo_in_its_place,
        fifo,
        subdirectory,
        truncate,
        unlink,
        unlink,
        remove_directory,
        scribble,
        time_travel,
        swap,
        shut,
    )
    print("begun", flush=True)
    while True:
        with contextlib.suppress(OSError):
            chance.choice(deeds)(chance.choice(names))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
