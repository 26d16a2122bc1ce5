"""What a container has left in its directory: links, trees, mounts, millions of entries, races."""

import ctypes
import errno
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import needs_first_namespace
from own_cgroups import needs_cgroups
from stale_scene import StaleScene, gone, names, running_pod, until

from libhamiregion.agent import quarantine as quarantine_module
from libhamiregion.agent.quarantine import (
    Budget,
    NotRemoved,
    give_back,
    look_at,
    opened_root,
    quarantine,
    remove_quarantined,
)

POD = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def alive() -> Iterator[str]:
    with running_pod() as uid:
        yield uid


@pytest.fixture
def scene(tmp_path: Path, alive: str) -> Iterator[StaleScene]:
    scene = StaleScene(tmp_path, alive)
    yield scene
    scene.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A container's directory of which no pod has to be gone."""
    made = tmp_path / "root" / f"{POD}_train"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A directory outside, which nobody may touch."""
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "file").write_text("precious")
    (outside / "inner" / "file").write_text("precious too")
    return outside


def is_whole(treasure: Path) -> bool:
    files = sorted(each for each in treasure.rglob("*") if each.is_file())
    return [each.read_text() for each in files] == ["precious", "precious too"]


def remove(directory: Path, work: int = 1_000_000) -> Budget:
    """Claim and remove a directory, in one go."""
    done = Budget(work)
    with opened_root(str(directory.parent)) as root:
        name = quarantine(root, directory.name, (POD, "train"), look_at(root, directory.name))
        assert remove_quarantined(root, name, done)
    return done


def test_everything_that_a_container_can_make_is_removed_and_nothing_followed(
    directory: Path, treasure: Path
) -> None:
    (directory / "to-file").symlink_to(treasure / "file")
    (directory / "to-directory").symlink_to(treasure)
    (directory / "to-nothing").symlink_to(treasure / "nothing")
    os.link(treasure / "file", directory / "hard-link")
    os.mkfifo(directory / "fifo")
    os.mknod(directory / "socket", 0o666 | stat.S_IFSOCK)
    if os.geteuid() == 0:
        os.mknod(directory / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (directory / "two\nlines \udcff\x1b[2J").touch()
    (directory / ("n" * 255)).touch()
    closed = directory / "closed" / "deeper"
    closed.mkdir(parents=True)
    (closed / "to-outside").symlink_to(treasure / "inner")
    (closed / "file").write_bytes(bytes(8192))
    closed.chmod(0)
    remove(directory)
    assert names(directory.parent) == []
    assert is_whole(treasure)


def test_a_tree_of_any_depth_takes_three_descriptors(directory: Path) -> None:
    depth = 400
    at = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a" * 100, dir_fd=at)
        below = os.open("a" * 100, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("file", os.O_CREAT, dir_fd=at))
    os.close(at)
    spare = max(int(each) for each in names(Path("/proc/self/fd"))) + 8
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, before[1]))
    try:
        done = remove(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert done.removed == depth + 2
    assert names(directory.parent) == []


def test_one_huge_directory_does_not_keep_the_others_waiting(scene: StaleScene) -> None:
    huge = scene.container(region=False)
    for number in range(1_000):
        (huge / str(number)).touch()
    small = [scene.container(region=False) for _ in range(5)]
    collector = scene.collector(entries_per_pass=1_200)
    until(collector, gone(*small))
    assert scene.quarantined(), "the huge one takes more passes"
    before = collector.counters()["removal_entries"]
    collector.run()
    assert 0 < collector.counters()["removal_entries"] - before <= 300
    until(collector, lambda: not scene.quarantined())
    assert collector.counters()["removal_entries"] == 1_001 + 5


def test_who_goes_on_filling_it_costs_no_more_than_the_share_of_a_directory(
    directory: Path,
) -> None:
    stop = threading.Event()

    def fill() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                os.close(os.open(str(number), os.O_CREAT, dir_fd=at))
            except FileNotFoundError:
                return  # it was empty for a moment, and is gone

    at = os.open(directory, os.O_RDONLY)
    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    try:
        with opened_root(str(directory.parent)) as root:
            name = quarantine(root, directory.name, (POD, "train"), look_at(root, directory.name))
            work = Budget(300)
            remove_quarantined(root, name, work)
    finally:
        stop.set()
        filler.join()
        os.close(at)
    assert work.left >= 0
    assert work.removed <= 301


# ---- races ---------------------------------------------------------------------------------------

SWAPPER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
one, other = (os.fsencode(each) for each in sys.argv[1:3])
print("ready", flush=True)
while True:
    libc.renameat2(-100, one, -100, other, 2)
"""


class Swapper:
    """Another process that exchanges two names as fast as it can."""

    def __init__(self, one: Path, other: Path) -> None:
        words = [sys.executable, "-c", SWAPPER, str(one), str(other)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def needs_exchange(directory: Path) -> None:
    one, other = directory / "one", directory / "other"
    one.mkdir()
    other.symlink_to("nowhere")
    names = (os.fsencode(one), os.fsencode(other))
    done = libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    if done != 0:
        pytest.skip("needs a file system that can exchange two names")
    one.unlink()
    other.rmdir()


def test_a_directory_that_becomes_a_link_meanwhile_leads_nowhere(
    directory: Path, treasure: Path, tmp_path: Path
) -> None:
    needs_exchange(tmp_path)
    lure = directory.parent / f"{POD}_lure"
    lure.symlink_to(treasure)
    for _ in range(6):
        (directory / "sub").mkdir(exist_ok=True)
        (directory / "sub" / "file").touch()
        with Swapper(directory, lure), opened_root(str(directory.parent)) as root:
            for _ in range(20):
                try:
                    name = quarantine(
                        root, directory.name, (POD, "train"), look_at(root, directory.name)
                    )
                    remove_quarantined(root, name, Budget(100))
                except (OSError, NotRemoved):
                    continue
                break
        assert is_whole(treasure)
        for each in directory.parent.iterdir():
            if each.is_symlink():
                each.unlink()
            else:
                shutil.rmtree(each)
        directory.mkdir()
        lure.symlink_to(treasure)


def test_a_subdirectory_that_becomes_a_link_meanwhile_leads_nowhere(
    directory: Path, treasure: Path, tmp_path: Path
) -> None:
    needs_exchange(tmp_path)
    for _ in range(6):
        inner, lure = directory / "inner", directory / "lure"
        for number in range(10):
            (inner / f"d{number}" / "e").mkdir(parents=True)
        lure.symlink_to(treasure)
        with opened_root(str(directory.parent)) as root:
            name = quarantine(root, directory.name, (POD, "train"), look_at(root, directory.name))
            claimed = directory.parent / name
            with Swapper(claimed / "inner", claimed / "lure"):
                for _ in range(20):
                    try:
                        if remove_quarantined(root, name, Budget(1_000)):
                            break
                    except OSError:
                        continue
        assert is_whole(treasure)
        shutil.rmtree(directory.parent)
        directory.mkdir(parents=True)


def test_another_directory_in_its_place_keeps_its_name(directory: Path) -> None:
    with opened_root(str(directory.parent)) as root:
        look = look_at(root, directory.name)
        directory.rename(directory.parent / "aside")
        directory.mkdir()
        (directory / "new").touch()
        with pytest.raises(NotRemoved, match="another one has come in its place"):
            quarantine(root, directory.name, (POD, "train"), look)
    assert names(directory.parent) == [directory.name, "aside"]
    assert (directory / "new").exists()


def test_a_new_directory_made_at_the_last_moment_keeps_its_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a device plugin makes it: empty, so that a plain rename would replace it."""
    made: list[int] = []
    rename = quarantine_module.rename_to_free_name

    def renamed(root: int, name: str, free: str) -> None:
        if free == directory.name:
            directory.mkdir()
            made.append(directory.stat().st_ino)
        rename(root, name, free)

    (directory / "old").touch()
    with opened_root(str(directory.parent)) as root:
        claimed = quarantine(root, directory.name, (POD, "train"), look_at(root, directory.name))
        monkeypatch.setattr(quarantine_module, "rename_to_free_name", renamed)
        assert not give_back(root, claimed, directory.name)
    assert made == [directory.stat().st_ino]
    assert names(directory.parent / claimed) == ["old"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, None])
def test_what_could_not_have_its_name_back_is_not_touched(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """A file system, a kernel or a C library that cannot rename without replacing."""

    class Library:
        pass

    def refuse(*_: object) -> int:
        ctypes.set_errno(number or 0)
        return -1

    if number is not None:
        Library.renameat2 = staticmethod(refuse)  # type: ignore[attr-defined]
    monkeypatch.setattr(quarantine_module, "_LIBC", Library)
    with opened_root(str(directory.parent)) as root:
        look = look_at(root, directory.name)
        with pytest.raises(NotRemoved, match="cannot rename it without replacing"):
            quarantine(root, directory.name, (POD, "train"), look)
    assert names(directory.parent) == [directory.name]


# ---- mounts --------------------------------------------------------------------------------------

MOUNTED = """
import os, subprocess, sys, time
from pathlib import Path
from libhamiregion.agent import StaleDirectoryCollector
from libhamiregion.node import Node

POD, what, outside, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
source = outside / "file" if what == "file" else outside
target = directory if what == "itself" else directory / "deep" / "mounted"
if what == "file":
    target.parent.mkdir()
    target.touch()
else:
    target.mkdir(parents=True, exist_ok=True)
subprocess.run(["mount", "--bind", source, target], check=True)

events = []
with Node(directory.parent) as node:
    logs, pods = sys.argv[5:7]
    collector = StaleDirectoryCollector(
        node, pod_logs=logs, kubelet_pods=pods, gone_after_s=0.05, emit=events.append
    )
    for _ in range(3):
        collector.run()
        time.sleep(0.06)
print(*(each.message for each in events), sep="\\n")
"""


@pytest.mark.slow(keep=1)
@needs_first_namespace
@needs_cgroups
@pytest.mark.parametrize("what", ["itself", "directory", "file"])
def test_what_is_mounted_inside_survives(scene: StaleScene, treasure: Path, what: str) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("needs the right to make mount namespaces")
    directory = scene.container(POD, region=False)
    words = [sys.executable, "-c", MOUNTED, POD, what, treasure, directory, scene.logs, scene.pods]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert is_whole(treasure)
    reason = {
        "itself": "it is a mount point",
        "directory": "mounted: Device or resource busy",
        "file": "mounted: Device or resource busy",
    }[what]
    assert done.stdout.startswith(f"{POD}/train: {directory.parent}/"), done.stdout
    assert done.stdout.splitlines()[0].endswith(f" was not removed: {reason}")


MOUNTED_LATER = """
import subprocess, sys
from pathlib import Path
from libhamiregion.agent.quarantine import (
    Budget, NotRemoved, look_at, opened_root, quarantine, remove_quarantined
)

pod, outside, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
with opened_root(str(directory.parent)) as root:
    name = quarantine(root, directory.name, (pod, "train"), look_at(root, directory.name))
    claimed = directory.parent / name
    subprocess.run(["mount", "--bind", outside, claimed], check=True)
    try:
        remove_quarantined(root, name, Budget(1_000))
    except NotRemoved as error:
        print(error)
    subprocess.run(["umount", claimed], check=True)
    print(remove_quarantined(root, name, Budget(1_000)))
"""


@needs_first_namespace
def test_what_is_mounted_on_a_quarantined_directory_survives(
    directory: Path, treasure: Path
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("needs the right to make mount namespaces")
    (directory / "file").touch()
    words = [sys.executable, "-c", MOUNTED_LATER, POD, str(treasure), str(directory)]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["it is a mount point", "True"]
    assert is_whole(treasure)
    assert names(directory.parent) == []


# ---- rights --------------------------------------------------------------------------------------


def chattr(how: str, file: Path) -> bool:
    """Whether it could be done."""
    words = ["chattr", how, str(file)]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@needs_first_namespace
@needs_cgroups
def test_a_file_that_may_not_be_removed_is_said_once_and_holds_up_nothing_else(
    scene: StaleScene,
) -> None:
    stubborn, other = scene.container(), scene.container()
    file = stubborn / "usage.cache"
    for number in range(5):
        (stubborn / str(number)).touch()
    if shutil.which("chattr") is None or not chattr("+i", file):
        pytest.skip("needs chattr, and a file system that has immutable files")
    try:
        collector = scene.collector()
        until(collector, gone(stubborn, other))
        for _ in range(3):
            collector.run()
        (begun,) = scene.quarantined()
        assert names(begun) == ["usage.cache"]
    finally:
        for each in scene.root.glob("*/usage.cache"):
            assert chattr("-i", each)
    failure, *_ = scene.events.of("failed")
    assert "was not removed: usage.cache: Operation not permitted" in failure.message
    until(collector, lambda: not scene.quarantined())
    assert scene.events.kinds("train").count("removed") == 2


@needs_first_namespace
@needs_cgroups
def test_a_root_that_somebody_else_can_have_made_is_left_alone(scene: StaleScene) -> None:
    directory = scene.container()
    os.chown(scene.root.parent, 12345, -1)
    until(scene.collector(), scene.saw("failed"))
    os.chown(scene.root.parent, os.geteuid(), -1)
    assert directory.is_dir()
    assert "on the way belongs to user 12345" in scene.events[0].message


def test_a_link_on_the_way_to_the_root_is_not_followed(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(directory.parent)
    with pytest.raises(OSError, match="Not a directory"), opened_root(str(tmp_path / "link")):
        pass
