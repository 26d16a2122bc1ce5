"""What a node finds in the directories of its containers."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forked import unprivileged
from support.node_root import only, opened, pod_uid, reason, refresh, refreshed, remove, settle
from support.region_file import RegionFile, truncate

from libhamiregion import Layout, create_region, open_region
from libhamiregion.node import MissingReason, Node, directories
from libhamiregion.observation.containers import MissingRegion

STATIC_POD = "5f2c1b1a9f6d4c0e8a7b6c5d4e3f2a1b"


# ---- names ----


def test_the_pods_uid_ends_at_the_first_underscore(root, node):
    uid = pod_uid()
    for name in ("train", "train_0_a", "init-weights"):
        root.container(name, uid)
    root.container("etcd", STATIC_POD)
    refresh(node)
    found = {(each.pod_uid, each.name) for each in node.containers}
    assert found == {
        (uid, "train"),
        (uid, "train_0_a"),
        (uid, "init-weights"),
        (STATIC_POD, "etcd"),
    }


def test_what_is_no_containers_directory_is_skipped(root, node):
    (root.path / "lost+found").mkdir()
    (root.path / "_train").mkdir()
    (root.path / f"{pod_uid()}_").mkdir()
    (root.path / f"{pod_uid()}_train.limits").write_text("{}")
    (root.path / f"{pod_uid()}_link").symlink_to(root.container("real"))
    os.mkfifo(root.path / f"{pod_uid()}_pipe")
    refresh(node)
    assert only(node).name == "real"
    assert node.root_errors == {}


def test_a_name_is_kept_as_it_is(root, node):
    for name in ("\x1b[2Jred", "new\nline", "é\udcff", "x" * 200):
        root.container(name)
    refresh(node)
    assert {each.name for each in node.containers} == {
        "\x1b[2Jred",
        "new\nline",
        "é\udcff",
        "x" * 200,
    }


# ---- why there is none ----


def test_a_directory_without_a_file_says_so_until_it_has_one(root, node):
    directory = root.container()
    (directory / "libvgpu.so").touch()
    assert refresh(node)
    assert reason(only(node)) is MissingReason.NO_FILE
    create_region(directory / "a.cache")
    assert refresh(node)
    assert opened(node).region_path == str(directory / "a.cache")


def not_ready(path: Path) -> None:
    path.touch()


def short(path: Path) -> None:
    path.write_bytes(b"\0" * 1000)


def without_magic(path: Path) -> None:
    path.touch()
    truncate(path, 2_008_953)


def foreign(path: Path) -> None:
    path.write_bytes(b"\x7fELF" + bytes(2_008_953))


def link(path: Path) -> None:
    create_region(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        # A path of a socket is short.
        directory = os.open(path.parent, os.O_PATH)
        server.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("needs the right to make a device")


def of_no_layout(path: Path) -> None:
    create_region(path)
    RegionFile(path, Layout.V1_2).put("major_version", 9)


def damaged(path: Path) -> None:
    create_region(path)
    RegionFile(path, Layout.V1_2).put("proc_num", 5000)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (not_ready, MissingReason.NOT_READY),
        (short, MissingReason.NOT_READY),
        (without_magic, MissingReason.NOT_READY),
        (foreign, MissingReason.NOT_A_REGION),
        (link, MissingReason.NOT_A_REGION),
        (fifo, MissingReason.NOT_A_REGION),
        (unix_socket, MissingReason.NOT_A_REGION),
        (folder, MissingReason.NOT_A_REGION),
        (device, MissingReason.NOT_A_REGION),
        (of_no_layout, MissingReason.UNKNOWN_LAYOUT),
        (damaged, MissingReason.UNKNOWN_LAYOUT),
    ],
)
def test_what_stands_in_the_regions_place_is_named_and_gives_way_to_it(make, expected, root, node):
    path = root.container() / "a.cache"
    make(path)
    refresh(node)
    container = only(node)
    assert reason(container) is expected
    assert container.region is None
    assert container.region_path == str(path)
    assert isinstance(container.missing, MissingRegion)
    assert str(path) in container.missing.message
    assert not refresh(node)
    remove(path)
    create_region(path)
    refreshed(node)


def test_a_file_that_becomes_a_region_in_its_place_is_noticed(root, node):
    """Nothing of that shows in the directory."""
    path = root.region()
    content = path.read_bytes()
    truncate(path, 0)
    settle(path.parent)
    refresh(node)
    assert reason(only(node)) is MissingReason.NOT_READY
    with path.open("r+b") as file:
        file.write(content)
    refreshed(node)


def test_permissions_that_are_missing_are_told_and_noticed_when_they_come(public_directory):
    closed_file, closed_directory = public_directory / "a_file", public_directory / "b_directory"
    for directory in (closed_file, closed_directory):
        directory.mkdir()
        create_region(directory / "a.cache")
    (closed_file / "a.cache").chmod(0)
    closed_directory.chmod(0)

    def look() -> list[tuple[str | None, MissingReason | None]]:
        with Node(public_directory) as node:
            node.refresh(processes=False)
            return [(each.name, reason(each)) for each in node.containers]

    refused = MissingReason.NO_PERMISSION
    try:
        assert unprivileged(look) == [("file", refused), ("directory", refused)]
        (closed_file / "a.cache").chmod(0o666)
        closed_directory.chmod(0o755)
        assert unprivileged(look) == [("file", None), ("directory", None)]
    finally:
        closed_directory.chmod(0o755)


# ---- what becomes of an open region ----


def replace(path: Path) -> None:
    create_region(path.with_name("new"), priority=0)
    path.with_name("new").rename(path)


def make_again(path: Path) -> None:
    path.unlink()
    create_region(path, priority=0)


def make_directory_again(path: Path) -> None:
    remove(path.parent)
    path.parent.mkdir()
    create_region(path, priority=0)


@pytest.mark.parametrize("change", [replace, make_again, make_directory_again])
def test_a_file_that_takes_the_place_is_opened(change, root, node):
    path = root.region(priority=1)
    settle(path.parent, root.path)
    before = refreshed(node)
    assert not refresh(node)
    change(path)
    assert refresh(node)
    after = opened(node)
    assert after is not before
    assert after.region.priority == 0
    assert before.region.closed


def unlink(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    truncate(path, 0)


def cut_in_half(path: Path) -> None:
    truncate(path, 1_000_000)


def cut_last_page(path: Path) -> None:
    """The kernel shows zeros behind such an end, no fault."""
    truncate(path, 2_008_000)


def overwrite(field: str, value: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        RegionFile(path, Layout.V1_2).put(field, value)

    change.__name__ = field
    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (unlink, MissingReason.NO_FILE),
        (cut_off, MissingReason.NOT_READY),
        (cut_in_half, MissingReason.TRUNCATED),
        (cut_last_page, MissingReason.TRUNCATED),
        (overwrite("magic", 0), MissingReason.NOT_READY),
        (overwrite("magic", 1), MissingReason.NOT_A_REGION),
        (overwrite("major_version", 7), MissingReason.UNKNOWN_LAYOUT),
        (overwrite("proc_num", -1), MissingReason.UNKNOWN_LAYOUT),
        (overwrite("device_num", 17), MissingReason.UNKNOWN_LAYOUT),
        (overwrite("uuids", b"hostile"), MissingReason.UNKNOWN_LAYOUT),
    ],
)
def test_what_happens_to_an_open_region_is_told_by_the_next_refresh(change, expected, root, node):
    path = root.region()
    intact = path.read_bytes()
    settle(path.parent)
    refresh(node)
    assert not refresh(node)
    change(path)
    assert refresh(node)
    assert reason(only(node)) is expected
    assert len(node.snapshot().table) == 0
    assert node.snapshot().missing == node.containers
    # And back again, in place.
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:  # noqa: PTH123
        file.write(intact)
    refreshed(node)


def test_a_container_that_goes_takes_its_region_along(root, node):
    path = root.region()
    settle(path.parent, root.path)
    gone = refreshed(node)
    remove(path.parent)
    assert refresh(node)
    assert node.containers == ()
    assert gone.region.closed


def test_a_directory_that_becomes_a_link_is_not_followed(root, node):
    path = root.region()
    settle(path.parent, root.path)
    refreshed(node)
    path.parent.rename(root.path.parent / "elsewhere")
    path.parent.symlink_to(root.path.parent / "elsewhere")
    refresh(node)
    assert node.containers == ()


def test_a_directory_that_is_away_for_a_moment_is_found_again(root, node, monkeypatch):
    path = root.region()
    settle(path.parent, root.path)
    refresh(node)
    (path.parent / "sign").touch()

    scan = directories.scan_directory

    def look_while_away(*arguments: Any) -> Any:
        path.parent.rename(root.path.parent / "away")
        found = scan(*arguments)
        (root.path.parent / "away").rename(path.parent)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(directories, "scan_directory", look_while_away)
        refresh(node)
    assert node.containers == ()
    refreshed(node)


def test_a_region_that_somebody_else_has_closed_is_opened_again(root, node):
    path = root.region()
    settle(path.parent)
    region = refreshed(node).region
    region.close()
    refreshed(node)


def test_a_restored_time_hides_no_change(root, node):
    """A container can set the time of modification back; not that of the last change."""
    directory = root.container()
    os.utime(directory, (1, 1))
    settle(directory)
    refresh(node)
    assert reason(only(node)) is MissingReason.NO_FILE
    create_region(directory / "a.cache")
    os.utime(directory, (1, 1))
    refreshed(node)


def test_nothing_is_opened_again_while_nothing_changes(root, node):
    paths = [root.region(f"c{number}") for number in range(5)]
    root.container("empty")
    settle(*(path.parent for path in paths), root.path)
    refresh(node)
    before = node.containers
    regions = [each.region for each in before]
    for _ in range(5):
        assert not refresh(node)
    assert node.containers == before
    assert [each.region for each in node.containers] == regions


def test_containers_come_by_directory_in_whatever_order_they_appear(root, node):
    for uid in ("9", "1", "5"):
        root.container("x", uid)
        refresh(node)
    assert [each.pod_uid for each in node.containers] == ["1", "5", "9"]


def test_a_file_written_through_the_node_is_the_one_that_is_read(root, node):
    path = root.region(memory_limits=("1GiB",))
    with node.open(refreshed(node)) as region:
        region.set_memory_limit("2GiB")
    with open_region(path) as region:
        assert region.memory_limit(0) == 2 << 30
