"""What is read of a process under /proc, and where reading ends."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from libhamiregion.node import procfs
from libhamiregion.node.procfs import AccessDenied, Gone, Maps, TooMuch

START = 4321
SMALLEST = 4096
SHARED = "7f0000000000-7f0000001000 rw-s 00000000 fd:02 77 /vgpu/a.cache\n"
FIELDS = " ".join(["S", *["0"] * 16, "1", "0", str(START), *["0"] * 30])


class Proc:
    """A /proc with one process, 7, whose files are of the test's choice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "7").mkdir()
        (path / "7" / "stat").write_text(f"7 (a) S 1 2) {FIELDS}\n")
        self.descriptor = os.open(path, os.O_RDONLY)

    def maps(self, text: str, *, limit: int = 16) -> Maps:
        (self.path / "7" / "maps").write_text(text)
        return self.read_maps(limit)

    def read_maps(self, limit: int = 16) -> Maps:
        with procfs.opened_process(self.descriptor, 7) as process:
            return procfs.read_maps(process, smallest=SMALLEST, limit=limit)


@pytest.fixture
def proc(tmp_path) -> Iterator[Proc]:
    proc = Proc(tmp_path)
    yield proc
    os.close(proc.descriptor)


def test_all_mappings_of_a_file_are_taken_together(proc):
    second = "7f0000002000-7f0000005000 r--s 00001000 fd:02 77 /vgpu/a.cache\n"
    (file,) = proc.maps(SHARED + second).files
    assert (file.device, file.inode) == (os.makedev(0xFD, 2), 77)
    assert (file.start, file.end) == (0x7F0000000000, 0x7F0000001000)
    assert (file.length_bytes, file.writable) == (4 * 4096, True)
    assert (file.path, file.deleted) == ("/vgpu/a.cache", False)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "nonsense\n",
        "7f0000000000-7f0000001000 rw-p 00000000 fd:02 77 /private\n",
        "7f0000000000-7f0000001000 rw-s 00000000 00:00 0\n",
        "7f0000000000-7f0000000800 rw-s 00000000 fd:02 78 /too-small\n",
        "7f0000000000 rw-s 00000000 fd:02 78 /no-end\n",
        "7f0000000000-7f0000001000 rw-s 00000000 fd:02\n",
        "7f0000000000-7f0000001000 rw-p 0 fd:02 79 /x rw-s 0 fd:02 80 /forged\n",
    ],
)
def test_other_lines_are_no_files(proc, line):
    assert [each.inode for each in proc.maps(line + SHARED).files] == [77]


def test_a_deleted_file_and_libvgpu_are_recognised(proc):
    library = "7f1000000000-7f1000001000 r-xp 00000000 fd:02 5 /usr/lib/libvgpu.so\n"
    found = proc.maps(SHARED.replace(".cache", ".cache (deleted)") + library)
    assert found.has_libvgpu
    assert (found.files[0].path, found.files[0].deleted) == ("/vgpu/a.cache", True)


def test_a_line_longer_than_the_buffer_hides_no_other_one(proc):
    long = SHARED.replace("77", "78").replace("a.cache", "x" * 30_000)
    assert [each.inode for each in proc.maps(long + SHARED).files] == [78, 77]


def test_more_than_8_mib_of_maps_and_more_files_than_the_limit_are_too_much(proc):
    private = SHARED.replace("rw-s", "rw-p")
    with pytest.raises(TooMuch):
        proc.maps(private * (9 * 2**20 // len(private)) + SHARED)
    with pytest.raises(TooMuch):
        proc.maps(SHARED + SHARED.replace("77", "78"), limit=1)


def test_a_process_that_ended_is_gone(proc):
    with pytest.raises(Gone):
        proc.read_maps()
    with pytest.raises(Gone), procfs.opened_process(proc.descriptor, 8):
        pass


def test_a_process_without_its_first_thread_shows_its_maps_by_the_others(proc):
    for thread, text in ((7, ""), (9, SHARED)):
        (proc.path / "7" / "task" / str(thread)).mkdir(parents=True)
        (proc.path / "7" / "task" / str(thread) / "maps").write_text(text)
    assert [each.inode for each in proc.maps("").files] == [77]


def test_threads_that_end_meanwhile_leave_it_unknown(proc):
    (proc.path / "7" / "task" / "9").mkdir(parents=True)
    with pytest.raises(AccessDenied):
        proc.maps("")


def test_zombies_and_damaged_files_have_no_start_time(proc):
    def starts() -> list[tuple[int, int | None]]:
        return list(procfs.read_start_times(proc.descriptor, [7, 8]))

    stat = proc.path / "7" / "stat"
    assert starts() == [(7, START)]
    for text in ("", "7", "7 (a", "7 (a) S 1 2", f"7 (a) Z{FIELDS[1:]}\n"):
        stat.write_text(text)
        assert starts() == []


def test_without_free_descriptors_no_process_is_taken_for_ended(proc):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most[1]))
    try:
        starts = list(procfs.read_start_times(proc.descriptor, [7, 8]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert starts == [(7, None), (8, None)]
