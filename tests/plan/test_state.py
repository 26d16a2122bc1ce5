"""The state directory, and undo plans that are written whole."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.plan_scene import plan_scene

from libhamiregion.plan.state import PlanState, default_state_directory, write_new

scene = pytest.fixture(plan_scene)


def test_where_plans_remember_things(monkeypatch):
    monkeypatch.setenv("HAMIREGION_STATE", "/x/y")
    assert PlanState().directory == default_state_directory() == "/x/y"
    monkeypatch.delenv("HAMIREGION_STATE")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_state_directory() == "/var/lib/hamiregion"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/x/state")
    assert default_state_directory() == "/home/x/state/hamiregion"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert default_state_directory() == "/home/x/.local/state/hamiregion"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 9)
    with pytest.raises(FileNotFoundError, match="HAMIREGION_STATE"):
        default_state_directory()


def test_a_file_is_written_whole_or_not_at_all_and_replaces_only_what_it_may(tmp_path):
    state = PlanState(tmp_path / "state")
    target = Path(state.watch_undo_path)
    state.write_watch(state.watch_undo_path, "before")
    trap = tmp_path / "trap"
    trap.write_text("mine")
    # A file of somebody else's in the way is not written into.
    Path(f"{target}.{os.getpid()}.part").hardlink_to(trap)
    with pytest.raises(UnicodeEncodeError):
        state.write_watch(state.watch_undo_path, "\ud800")
    assert [path.name for path in (tmp_path / "state").iterdir()] == [target.name]
    assert target.read_text() == "before"
    state.write_watch(state.watch_undo_path, "after")
    assert (target.read_text(), trap.read_text()) == ("after", "mine")
    for path, error in ((target, FileExistsError), (tmp_path / "no" / "a", FileNotFoundError)):
        with pytest.raises(error) as caught:
            write_new(path, "second")
        assert caught.value.filename == str(path)
    assert target.read_text() == "after"


def test_of_the_undo_plans_in_the_state_directory_the_newest_are_kept(scene):
    state = PlanState(scene.state)
    state.write_watch(state.watch_undo_path, "watch")
    watch = Path(state.watch_undo_path)
    os.utime(watch, (1, 1))
    # As after a clock that was far ahead: what is there looks newer than what comes.
    for number in range(25):
        os.utime(state.write_undo(str(number)), (1 << 33, (1 << 33) + number))
    assert Path(state.write_undo("new")).read_text() == "new"
    assert watch.read_text() == "watch"
    kept = {path.read_text() for path in scene.state.glob("undo-[0-9]*.yaml")}
    assert kept == {"new", *(str(number) for number in range(6, 25))}


def test_plans_that_are_written_at_the_same_moment_do_not_disturb_each_other(scene):
    """Each removes old ones that the other has just seen, and takes the next free name."""
    for number in range(5):
        state = PlanState(scene.directory / f"state-{number}")
        for _ in range(20):
            os.utime(state.write_undo("old"), (1, 1))
        with ThreadPoolExecutor(8) as threads:
            paths = set(threads.map(state.write_undo, ["new"] * 16))
        assert len(paths) == 16
        assert {Path(path).read_text() for path in paths} == {"new"}


def test_an_undo_plan_is_on_the_disk_before_it_has_its_name_which_is_there_too(
    tmp_path, monkeypatch
):
    target = tmp_path / "undo.yaml"
    synced: list[tuple[Path, bool]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), target.exists()))

    monkeypatch.setattr(os, "fsync", noted)
    write_new(target, "whole")
    content, directory = synced
    assert content[0].name.endswith(".part")
    assert content[1] is False
    assert directory == (tmp_path, True)
