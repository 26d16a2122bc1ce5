"""`hamiregion limits get` and `hamiregion limits set`."""

import json
import shlex
import sys
from pathlib import Path

import pytest
from support.command_line import call, on_terminal, refused, run
from support.node_scene import SceneContainer
from support.plan_scene import PlanScene
from support.process import finished
from support.region_file import unchanged

import libhamiregion as hami
from libhamiregion.units import GIB

UUIDS = ("GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30", "GPU-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d")


def made(directory: Path, layout: hami.Layout = hami.Layout.V1_2) -> str:
    path = str(directory / "usage.cache")
    hami.create_region(
        path, memory_limits=(8 * GIB, 4 * GIB), sm_limits=(50,), uuids=UUIDS, layout=layout
    )
    return path


@pytest.fixture
def path(tmp_path) -> str:
    return made(tmp_path)


def memory_limits(path: str) -> tuple[int | None, int | None]:
    with hami.open_region(path) as region:
        return region.memory_limit(0), region.memory_limit(1)


def sm_limits(path: str) -> tuple[int | None, int | None]:
    with hami.open_region(path) as region:
        return region.sm_limit(0), region.sm_limit(1)


# ---- get ----------------------------------------------------------------------------------------


def test_get_shows_the_limits_of_every_device(path):
    first = {"index": 0, "memory_limit_bytes": 8 * GIB, "sm_limit_percent": 50}
    second = {"index": 1, "memory_limit_bytes": 4 * GIB, "sm_limit_percent": None}
    answer = json.loads(call("limits", "get", path, "--json").stdout)
    assert answer["devices"] == [each | {"memory_used_bytes": 0} for each in (first, second)]
    assert call("limits", "get", path).stdout == (
        "DEVICE  MEM-LIMIT  MEM-USED  SM-LIMIT\n"
        "0       8GiB       0B        50%\n"
        "1       4GiB       0B        unlimited\n"
    )
    text = on_terminal("limits", "get", path).text
    assert "8 GiB" in text
    assert "unlimited" in text


def test_get_of_one_device_by_index_or_uuid(path):
    for device, index in (("0", 0), (UUIDS[1], 1)):
        answer = call("limits", "get", path, "--device", device, "--json")
        (found,) = json.loads(answer.stdout)["devices"]
        assert found["index"] == index
    for device in ("GPU-none", "2", "1" * 5000):
        said = refused("limits", "get", path, "--device", device)
        assert f"only 0 ({UUIDS[0]}), 1 ({UUIDS[1]})" in said


# ---- set ----------------------------------------------------------------------------------------


def test_set_says_before_after_and_when_it_takes_effect(path):
    answer = call("limits", "set", path, "--memory", "75%", "--sm", "30%")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == (
        "device 0: memory limit 8 GiB -> 6 GiB (lowered), at once, also in running processes\n"
        "device 1: memory limit 4 GiB -> 3 GiB (lowered), at once, also in running processes\n"
        "device 0: SM limit 50 % -> 30 % (lowered), for processes started from now on\n"
        "device 1: SM limit unlimited -> 30 % (lowered), for processes started from now on\n"
        f"undo: hamiregion limits set {path} --memory 8GiB --device 0\n"
        f"undo: hamiregion limits set {path} --memory 4GiB --device 1\n"
        f"undo: hamiregion limits set {path} --sm 50 --device 0\n"
        f"undo: hamiregion limits set {path} --sm unlimited --device 1\n"
    )
    assert memory_limits(path) == (6 * GIB, 3 * GIB)
    assert sm_limits(path) == (30, 30)
    again = call("limits", "set", path, "--memory", "6144m", "--device", UUIDS[0])
    assert again.stdout == "device 0: memory limit 6 GiB -> 6 GiB (unchanged)\n"


def test_set_as_json_and_on_a_terminal(path):
    answer = call("limits", "set", path, "--device", "0", "--memory", "unlimited", "--json")
    change = {"limit": "memory", "device": 0, "before": 8 * GIB, "after": None}
    (told,) = json.loads(answer.stdout)["changes"]
    assert told == {**change, "effect": "immediate", "kept_by": None}
    assert memory_limits(path) == (None, 4 * GIB)
    text = on_terminal("limits", "set", path, "--memory", "6GiB", "--device", "0").text
    assert text.startswith(
        "device 0: memory limit unlimited -> 6 GiB (lowered), at once, also in running processes"
    )


def test_a_dry_run_changes_nothing_and_says_so(path):
    before = Path(path).read_bytes()
    for arguments in (("--memory", "3g"), ("--sm", "20"), ("--sm", "70", "--device", "0")):
        answer = call("limits", "set", path, *arguments, "--dry-run")
        assert " -> " in answer.stdout
        assert answer.stdout.endswith("\ndry run: nothing was written\n")
        as_json = json.loads(call("limits", "set", path, *arguments, "--dry-run", "--json").stdout)
        assert as_json["dry_run"] is True
        assert Path(path).read_bytes() == before


def test_a_limit_below_usage_is_refused_unless_forced(path):
    """Two limits are checked before either is stored."""
    with hami.open_region(path, writable=True) as region, region.attach() as slot:
        slot.charge(0, 5 * GIB)
        lower = ("limits", "set", path, "--device", "0", "--memory", "3GiB")
        for more in ((), ("--dry-run",), ("--sm", "10")):
            said = refused(*lower, *more, code=3)
            assert "device 0 uses 5 GiB" in said
            assert "; --force sets it all the same" in said
            assert (memory_limits(path), sm_limits(path)) == ((8 * GIB, 4 * GIB), (50, None))
        assert call(*lower, "--force").returncode == 0
    assert memory_limits(path) == (3 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("arguments", "holds"),
    [
        (("--device", "0", "--memory", "6g", "--if-equals", "8GiB"), True),
        (("--device", "0", "--memory", "6g", "--if-equals", "unlimited"), False),
        (("--device", "9", "--memory", "6g", "--if-equals", "unlimited", "--force"), True),
        # The second device has another limit: all or nothing.
        (("--memory", "6g", "--if-equals", "8g"), False),
        (("--device", "0", "--sm", "30", "--if-equals", "50"), True),
        (("--device", "1", "--sm", "30", "--if-equals", "unlimited"), True),
    ],
)
def test_if_equals_compares_and_sets(path, arguments, *, holds):
    before = Path(path).read_bytes()
    answer = call("limits", "set", path, *arguments)
    assert answer.returncode == (0 if holds else 3), answer.stderr
    assert holds or Path(path).read_bytes() == before


# ---- Several files ------------------------------------------------------------------------------


def test_of_several_files_each_is_tried_and_each_failure_is_a_line(tmp_path):
    paths = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        paths.append(made(tmp_path / name))
    with hami.open_region(paths[1], writable=True) as region:
        region.set_memory_limit("2GiB")
    none = str(tmp_path / "none.cache")
    given = ("limits", "set", *paths[:2], none, paths[2], "--device", "0", "--memory", "6GiB")

    answer = call(*given, "--if-equals", "8GiB")
    assert answer.returncode == 1
    assert answer.stdout == "".join(
        f"{path}: device 0: memory limit 8 GiB -> 6 GiB (lowered), at once, also in running"
        f" processes\nundo: hamiregion limits set {path} --memory 8GiB --device 0\n"
        for path in (paths[0], paths[2])
    )
    wrong_limit, missing = answer.stderr.splitlines()
    assert wrong_limit.startswith(f"Error: '{paths[1]}': the memory limit of device 0 is 2 GiB")
    assert missing.startswith(f"Error: '{none}' does not exist")
    assert [memory_limits(path)[0] for path in paths] == [6 * GIB, 2 * GIB, 6 * GIB]

    refused = call("limits", "set", *paths, "--sm", "20", "--if-equals", "99")
    assert (refused.returncode, refused.stderr.count("Error: ")) == (3, 3)

    as_json = call(*given, "--json")
    assert (as_json.returncode, as_json.stderr) == (1, f"{missing}\n")
    answers = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert [each["path"] for each in answers] == paths
    all_there = call("limits", "set", *paths, "--sm", "20")
    assert (all_there.returncode, all_there.stderr) == (0, "")


def test_a_file_that_is_named_twice_is_changed_once(tmp_path):
    """Where containers can write the root, one may link its directory to another's."""
    (tmp_path / "victim").mkdir()
    path = made(tmp_path / "victim")
    (tmp_path / "link").symlink_to("victim")
    again = f"{tmp_path}/link/{Path(path).name}"
    given = ("limits", "set", path, again, path, "--device", "0", "--memory", "50%")
    for dry in ("--dry-run",), ():
        done = call(*given, *dry, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["path"] == path
    assert memory_limits(path)[0] == 4 * GIB


def test_a_device_that_one_of_several_files_lacks_does_not_stop_the_others(tmp_path):
    (tmp_path / "one").mkdir()
    paths = [made(tmp_path), str(tmp_path / "one" / "usage.cache")]
    hami.create_region(paths[1], memory_limits=(GIB,), uuids=("GPU-other",))
    answer = call("limits", "set", *reversed(paths), "--device", UUIDS[1], "--memory", "2GiB")
    assert (answer.returncode, answer.stdout.count(" -> ")) == (1, 1)
    assert f"'{paths[1]}' has no device '{UUIDS[1]}'" in answer.stderr
    assert memory_limits(paths[0]) == (8 * GIB, 2 * GIB)


def test_a_limit_below_16_mib_needs_force(path):
    tiny = ("limits", "set", path, "--device", "0", "--memory", "8KiB")
    assert "'8KiB' is below 16 MiB, less than CUDA needs; --force sets it" in refused(*tiny)
    assert memory_limits(path) == (8 * GIB, 4 * GIB)
    for words in ((*tiny, "--force"), ("limits", "set", path, "--force", *tiny[3:])):
        assert call(*words).returncode == 0
    assert memory_limits(path)[0] == 8192


def test_one_limit_that_would_raise_one_of_several_devices_is_refused(path):
    for words, value in ((("--memory", "6GiB"), "6GiB"), (("--memory", "unlimited"), "unlimited")):
        said = refused("limits", "set", path, *words)
        command = f"  hamiregion limits set {path} --memory {value} --"
        assert f"{command}device " in said
        assert f"{command}all-devices\n" in said
        assert memory_limits(path) == (8 * GIB, 4 * GIB)
    assert call("limits", "set", path, "--sm", "60").returncode == 2
    for words in (
        ("--memory", "3GiB"),
        ("--memory", "150%"),
        ("--memory", "6GiB", "--all-devices"),
    ):
        assert call("limits", "set", path, *words).returncode == 0
    assert memory_limits(path) == (6 * GIB, 6 * GIB)
    # Equal limits may be raised.
    answer = call("limits", "set", path, "--memory", "7GiB")
    assert answer.stdout.count("6 GiB -> 7 GiB (raised)") == 2


def test_the_undo_that_is_printed_takes_an_edit_back(path):
    lower = call("limits", "set", path, "--force", "--memory", "8KiB", "--device", "1")
    back = [lower, call("limits", "set", path, "--memory", "1GiB", "--device", "1")]
    for answer, limit in ((back[1], 8192), (back[0], 4 * GIB)):
        undo = answer.stdout.splitlines()[1].removeprefix("undo: hamiregion ")
        assert call(*shlex.split(undo)).returncode == 0
        assert memory_limits(path) == (8 * GIB, limit)


# ---- Wrong usage --------------------------------------------------------------------------------


def test_a_device_that_the_region_does_not_have_is_wrong_usage_unless_forced(path):
    with unchanged(path):
        for arguments in (("--sm", "10"), ("--memory", "1g"), ("--memory", "1g", "--dry-run")):
            said = refused("limits", "set", path, "--device", "5", *arguments)
            assert f"has no device 5, only 0 ({UUIDS[0]}), 1 ({UUIDS[1]});" in said
    forced = call("limits", "set", path, "--device", "5", "--sm", "10", "--force", "--json")
    assert json.loads(forced.stdout)["changes"][0]["after"] == 10


# ---- the card ------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path, fake_driver, nvml_sampler) -> tuple[PlanScene, SceneContainer, SceneContainer]:
    """Two containers with 8 GiB each on a GPU of 24 GiB, whose driver this process has loaded."""
    fake_driver.play(f"device 0 {UUIDS[0]} {24 * GIB} 0 0 0 A30")
    nvml_sampler.sample()
    scene = PlanScene(tmp_path)
    a, b = (
        scene.container(pod=pod, memory_limits=[8 * GIB], uuids=UUIDS[:1], sm_limits=[])
        for pod in ("a", "b")
    )
    return scene, a, b


def test_a_raise_beyond_the_card_is_refused_unless_it_is_forced(shared, fake_driver):
    scene, a, b = shared
    given = ("limits", "set", *scene.options)

    def set_limit(*words: str) -> int:
        return call(*given, *words).returncode

    answer = run(*given, "a", "--memory", "17GiB", env=fake_driver.environment())
    assert answer.returncode == 3
    assert "would add up to 25 GiB, and it has 24 GiB" in answer.stderr
    assert "--force sets it all the same" in answer.stderr
    undo = scene.directory / "undo.yaml"
    assert set_limit("a", "--memory=17GiB", f"--undo-file={undo}") == 3
    assert not undo.exists()
    # The file itself is in the node, too.
    assert set_limit(str(a.path), "--memory", "unlimited") == 3
    assert a.get("limit") == 8 * GIB
    assert set_limit("b", "--memory", "7GiB") == 0
    assert set_limit("a", "--memory", "17GiB") == 0
    assert set_limit("b", "--memory", "9GiB", "--force") == 0
    assert [each.get("limit") for each in (a, b)] == [17 * GIB, 9 * GIB]
    # Lower, and still beyond the card.
    assert set_limit("a", "--memory", "16GiB") == 0


def test_a_raise_says_so_if_the_card_s_memory_is_not_known(shared, fake_driver):
    scene, a, _ = shared
    given = ("limits", "set", "a", *scene.options)
    fake_driver.play("error nvmlInitWithFlags 9")
    answer = call(*given, "--memory", "17GiB")
    assert (answer.returncode, a.get("limit")) == (0, 17 * GIB)
    assert answer.stderr.startswith("Note: the memory of device 0's GPU is not known")
    for words in (("--memory", "16GiB"), ("--memory", "18GiB", "--force"), ("--sm", "50")):
        answer = call(*given, *words)
        assert (answer.returncode, answer.stderr) == (0, "")


# The command, with a file system that fails when the first region is written.
FAILS_ONCE = """
import errno, sys
from libhamiregion import Region
from libhamiregion.cli import main

path, edit_limits = sys.argv.pop(1), Region.edit_limits

def edit(region, edits, *, dry_run, **settings):
    if region.path == path and not dry_run:
        raise OSError(errno.EIO, "input/output error", path)
    return edit_limits(region, edits, dry_run=dry_run, **settings)

Region.edit_limits = edit
main()
"""


def test_a_raise_that_fails_leaves_room_for_the_next_container(shared, fake_driver):
    scene, a, b = shared
    words = ("limits", "set", "--all", "*", "--memory", "13GiB", *scene.options)
    answer = finished(
        [sys.executable, "-c", FAILS_ONCE, str(a.path), *words], env=fake_driver.environment()
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("Error: research/a/train: ")
    assert "research/b" not in answer.stderr
    assert [each.get("limit") for each in (a, b)] == [8 * GIB, 13 * GIB]
