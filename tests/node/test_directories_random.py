"""Whatever containers do, a node that followed them knows what a new one finds."""

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.node_root import Root, refresh, touch
from support.region_file import RegionFile, truncate
from support.stress import scaled

from libhamiregion import Layout, create_region
from libhamiregion.node import Container, Node

_numbers = itertools.count()
FILES = ("a.cache", "b.cache", "c.cache", "libvgpu.so")


def make_region(path: Path) -> None:
    clear(path)
    create_region(path)


def make_region_elsewhere(path: Path) -> None:
    clear(path)
    create_region(path.with_name("new"))
    path.with_name("new").rename(path)


def make_empty(path: Path) -> None:
    clear(path)
    path.touch()


def make_garbage(path: Path) -> None:
    clear(path)
    path.write_bytes(b"garbage")


def make_link(path: Path) -> None:
    clear(path)
    path.symlink_to(beside_root(path, "elsewhere"))


def make_fifo(path: Path) -> None:
    clear(path)
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    clear(path)
    path.mkdir()


def cut_off(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        truncate(path, 0)


def damage(path: Path) -> None:
    if path.is_file() and not path.is_symlink() and path.stat().st_size > 2_000_000:
        RegionFile(path, Layout.V1_2).put("proc_num", -1)


def fill(path: Path) -> None:
    """In place, as one that was truncated is made anew.

    Not one that is a region: a further region that is written to takes nobody's place.
    """
    if path.is_file() and not path.is_symlink() and path.stat().st_size < 2_000_000:
        create_region(path.with_name("new"))
        path.write_bytes(path.with_name("new").read_bytes())
        path.with_name("new").unlink()


def clear(path: Path) -> None:
    if os.path.lexists(path):
        # Kept, so that no later file has its inode number and is taken for it.
        path.rename(beside_root(path, f"gone-{next(_numbers)}"))


def beside_root(path: Path, name: str) -> Path:
    """A place outside the root that `path` is in."""
    (root,) = (each for each in path.parents if each.name == "containers")
    return root.with_name(name)


IN_A_DIRECTORY: tuple[Callable[[Path], None], ...] = (
    make_region,
    make_region,
    make_region_elsewhere,
    make_empty,
    make_garbage,
    make_link,
    make_fifo,
    make_directory,
    cut_off,
    damage,
    fill,
    fill,
    clear,
)


def drop_directory(directory: Path) -> None:
    clear(directory)


def make_directory_again(directory: Path) -> None:
    clear(directory)
    directory.mkdir()


def replace_by_file(directory: Path) -> None:
    clear(directory)
    directory.touch()


def replace_by_link(directory: Path) -> None:
    clear(directory)
    directory.symlink_to(beside_root(directory, "elsewhere.d"))


OF_A_DIRECTORY = (drop_directory, make_directory_again, replace_by_file, replace_by_link)


def described_file(path: Path) -> object:
    if not os.path.lexists(path):
        return None
    status = path.lstat()
    return status.st_ino, status.st_ctime_ns, status.st_size


def step(chance: random.Random, directories: list[Path]) -> bool:
    """Do something; whether more may be done before somebody looks."""
    directory = chance.choice(directories)
    if chance.random() < 0.15 or not directory.is_dir() or directory.is_symlink():
        chance.choice(OF_A_DIRECTORY)(directory)
        return True
    path = directory / chance.choice(FILES)
    what = chance.choice(IN_A_DIRECTORY)
    before = described_file(path)
    what(path)
    # What was changed last is the newest, as with real time; two may share a tick of the clock.
    if os.path.lexists(path) and described_file(path) != before:
        touch(path)
    return what is not cut_off


def described(container: Container) -> tuple[object, ...]:
    readable = container.region is not None and container.region.snapshot() is not None
    return (
        container.directory,
        container.region_path,
        readable,
        container.missing,
        set(container.other_files),
        None if container.region is None else container.region.file_id,
    )


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        *((seed, 60) for seed in range(8)),
        *(pytest.param(each, 400, marks=pytest.mark.slow) for each in range(100, 100 + scaled(60))),
    ],
)
def test_a_node_that_followed_knows_what_a_new_one_finds(seed, steps, tmp_path):
    root = Root(tmp_path / "containers")
    chance = random.Random(seed)
    directories = [root.path / f"{number}_c" for number in range(4)]
    # What links lead to: a region, and a directory with one.
    create_region(root.path.with_name("elsewhere"))
    root.path.with_name("elsewhere.d").mkdir()
    create_region(root.path.with_name("elsewhere.d") / "a.cache")
    with Node(root) as node:
        for _ in range(steps):
            for _ in range(chance.choice((1, 1, 1, 3))):
                if not step(chance, directories):
                    break
            refresh(node)
            with Node(root) as fresh:
                fresh.refresh(processes=False)
                assert [*map(described, node.containers)] == [*map(described, fresh.containers)]
            assert len(node.snapshot().table) == sum(
                each.region is not None for each in node.containers
            )
