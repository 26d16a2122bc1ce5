"""`hamiregion create`."""

import json
from pathlib import Path

from support.command_line import call, on_terminal, refused, run

import libhamiregion as hami
from libhamiregion.units import GIB, MIB

UUIDS = ("GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30", "MIG-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d")


def test_options_are_those_of_one_device_after_the_other(tmp_path):
    path = str(tmp_path / "new.cache")
    answer = call(
        *("create", path, "--memory", "8GiB", "--memory", "unlimited", "--sm", "50"),
        *("--uuid", UUIDS[0], "--uuid", UUIDS[1], "--priority", "0", "--json"),
    )
    assert answer.returncode == 0, answer.stderr
    with hami.open_region(path) as region:
        assert (region.memory_limit(0), region.memory_limit(1)) == (8 * GIB, None)
        assert (region.sm_limit(0), region.sm_limit(1)) == (50, None)
        assert (region.uuids, region.priority) == (UUIDS, 0)
    shown = json.loads(call("show", path, "--json").stdout)
    assert json.loads(answer.stdout) | {"taken_at_ns": 0} == shown | {"taken_at_ns": 0}


def test_a_soft_limit_can_be_made_where_the_layout_has_room_for_it(tmp_path):
    for number, layout in enumerate(hami.Layout):
        path = tmp_path / f"{number}.cache"
        arguments = ("create", str(path), "--sm", "30", "--burst", "--layout", layout.value)
        answer = call(*arguments, "--json")
        if layout.version is None:
            assert answer.returncode == 2
            assert answer.stderr.endswith("has no room for --burst.\n")
            assert not path.exists()
            continue
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["burst"] is True
        with hami.open_region(path) as region:
            assert (region.burst, region.sm_limit(0)) == (True, 30)
        assert "burst" in call("create", f"{path}.dry", *arguments[2:], "--dry-run").stdout
        assert not Path(f"{path}.dry").exists()


def test_limits_come_from_the_environment_by_libvgpus_rules(tmp_path):
    path = str(tmp_path / "new.cache")
    env = {"CUDA_DEVICE_MEMORY_LIMIT": "3000m", "CUDA_DEVICE_SM_LIMIT_1": "30"}
    assert run("create", path, "--from-environment", env=env).returncode == 0
    with hami.open_region(path) as region:
        assert [region.memory_limit(device) for device in range(16)] == [3000 * MIB] * 16
        assert (region.sm_limit(0), region.sm_limit(1)) == (None, 30)


def test_a_limit_that_releases_read_differently_needs_the_release(tmp_path):
    path, env = tmp_path / "new.cache", {"CUDA_DEVICE_MEMORY_LIMIT": "6GiB"}
    refused = run("create", str(path), "--from-environment", env=env)
    assert refused.returncode == 2
    assert "gets 6 bytes up to HAMi 2.10 and 6442450944 bytes from 2.11 on" in refused.stderr
    assert "--hami-version says which" in refused.stderr
    for version, limit in (("2.10", 6), ("2.11", 6 << 30)):
        options = ("--from-environment", "--hami-version", version)
        assert run("create", str(path), *options, env=env).returncode == 0
        with hami.open_region(path) as region:
            assert region.memory_limit(0) == limit
        path.unlink()


def test_a_dry_run_shows_what_is_made_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = str(tmp_path / "new.cache")
    answer = call("create", path, "--memory", "1g", "--dry-run")
    assert f"path         {path}\n" in answer.stdout
    assert answer.stdout.endswith("\ndry run: nothing was written\n")
    dry = call("create", path, "--memory", "1g", "--dry-run", "--json")
    assert list(tmp_path.iterdir()) == []
    made = call("create", path, "--memory", "1g", "--json")
    now = {"taken_at_ns": 0, "last_kernel_time_s": 0}
    assert json.loads(dry.stdout) | now == json.loads(made.stdout) | now


def test_a_terminal_gets_the_table(tmp_path):
    terminal = on_terminal("create", str(tmp_path / "new.cache"), "--memory", "1g")
    assert "╭" in terminal.text
    assert "No process has a slot." in terminal.text


def test_what_is_there_is_never_overwritten_and_a_directory_has_to_be_there(tmp_path):
    there = tmp_path / "new.cache"
    there.write_bytes(b"mine")
    for path in (there, tmp_path / "none" / "new.cache"):
        for dry in ((), ("--dry-run",)):
            said = refused("create", str(path), *dry, code=1)
            assert str(path.parent) in said
            assert said.count("\n") == 1
    assert there.read_bytes() == b"mine"
