"""`hamiregion doctor` as people run it: what it says, what it exits with, what it changes."""

import json
import os
import signal
import uuid
from typing import Any

import pytest
from support.command_line import COLOUR, Terminal, call, start
from support.region_file import RegionFile, unchanged
from support.slot_bytes import attached

import libhamiregion as hami
from libhamiregion.units import GIB

GPU = "GPU-00000000-0000-0000-0000-000000000000"
POD = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"
DEAD = 4_194_305
HOSTILE = "evil\x1b[2J\u202ename"


@pytest.fixture(autouse=True)
def short_settling(monkeypatch) -> None:
    """Findings here are there from the start; commands in processes of their own take 1.5 s."""
    monkeypatch.setattr("libhamiregion.cli.doctor.SETTLE_S", 0.01)


@pytest.fixture
def region(tmp_path, actor) -> RegionFile:
    """The region of a healthy container with one process."""
    directory = tmp_path / "containers" / f"{POD}_train"
    directory.mkdir(parents=True)
    path = directory / "usage.cache"
    hami.create_region(path, memory_limits=(8 * GIB,), uuids=[GPU])
    process = attached(actor(path), GIB)
    process("region.set_host_pid", process.pid, process.pid)
    return RegionFile(path, hami.Layout.V1_2)


def arguments(region: RegionFile, *more: str) -> tuple[str, ...]:
    root = str(region.path.parent.parent)
    return ("doctor", "--root", root, "--no-driver", *more)


def make_ill(region: RegionFile) -> None:
    region.put("slot_hostpid", 0)
    region.add_process(DEAD, {0: 2 * GIB})


def as_json(region: RegionFile, *more: str) -> tuple[int, dict[str, Any]]:
    answer = call(*arguments(region, "--json", *more))
    return answer.returncode, json.loads(answer.stdout)


def test_a_healthy_node_exits_with_0(region):
    answer = call(*arguments(region))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "nothing found in 1 container\n" in answer.stdout


def test_findings_exit_with_3_and_are_a_line_and_a_paragraph_per_kind(region):
    make_ill(region)
    answer = call(*arguments(region))
    assert answer.returncode == 3
    table, first, second, total = answer.stdout.split("\n\n")
    heading, *rows = [line.split(None, 4) for line in table.splitlines()]
    assert heading == ["SEVERITY", "KIND", "FINDINGS", "REPAIR", "CONTAINERS"]
    assert rows == [
        ["warning", "dead_process_counted", "1", "yes", f"{POD}/train"],
        ["warning", "host_pid_wrong", "1", "yes", f"{POD}/train"],
    ]
    said = f"{POD}/train, device 0, pid {DEAD}: 2 GiB of 1 dead process still counted"
    assert first.startswith(f"warning: dead_process_counted\n  {said}\n    Evidence: pid ")
    for part in ("Evidence: ", "Consequence: ", "What to do: "):
        assert part in first
        assert part in second
    assert total == "2 warnings; --repair repairs 2 of them\n"
    assert "kubectl hamiregion doctor --repair --node NODE" in answer.stderr


def test_many_findings_of_a_kind_are_bounded_unless_the_kind_is_asked_for(region):
    root = region.path.parent.parent
    for number in range(40):
        directory = root / f"{number:08}-0000-0000-0000-000000000000_main"
        directory.mkdir()
        (directory / "a.cache").symlink_to("elsewhere")
    told = call(*arguments(region)).stdout
    assert len(told.splitlines()) < 20
    (line,) = (line for line in told.splitlines() if line.startswith("info "))
    # Of what is missing, nothing can be repaired.
    assert line.split()[2:4] == ["40", "no"]
    assert line.endswith(" and 37 more")
    assert "  and 39 more; --only region_missing shows all\n" in told
    every = call(*arguments(region, "--only", "region_missing")).stdout
    assert every.count("Evidence: ") == 40


def test_json_has_the_same(region):
    make_ill(region)
    code, told = as_json(region, "--only", "dead_process_counted")
    assert code == 3
    (found,) = told["findings"]
    assert all(found[name] for name in ("evidence", "consequence", "advice", "repairable"))
    assert (found["kind"], found["severity"]) == ("dead_process_counted", "warning")
    assert (found["pod_uid"], found["container"]) == (POD, "train")
    assert (found["device"], found["pid"]) == (0, DEAD)
    assert found["summary"] == "2 GiB of 1 dead process still counted"
    assert (found["namespace"], found["pod"], found["cause"]) == (None, None, None)
    assert told["driver"] is None


def test_a_dry_run_says_what_a_repair_does_and_writes_nothing(region):
    make_ill(region)
    with unchanged(region):
        dry = call(*arguments(region, "--repair", "--dry-run"))
        assert dry.returncode == 3
        assert f"would free the slot of dead process {DEAD}, 2 GiB" in dry.stdout
        assert dry.stdout.endswith("2 warnings; dry run: nothing was written\n")

    code, told = as_json(region, "--repair")
    assert code == 0
    assert (told["findings"], told["left"], told["dry_run"]) == ([], 0, False)
    done = {each["kind"]: each for each in told["repairs"]}
    assert all(each["done"] and each["error"] is None for each in done.values())
    pid = done["host_pid_wrong"]["pid"]
    assert done["host_pid_wrong"]["actions"] == [f"host pid of process {pid}: none -> {pid}"]


def test_what_cannot_be_repaired_is_left_and_said(region):
    make_ill(region)
    (region.path.parent.parent / f"{POD}_other").mkdir()
    os.mkfifo(region.path.parent.parent / f"{POD}_other" / "a.cache")
    answer = call(*arguments(region, "--repair"))
    assert answer.stdout.count("repaired ") == 2
    assert "region_missing" in answer.stdout
    assert "left\n" in answer.stdout


def test_filters_choose_what_is_shown_and_repaired(region):
    make_ill(region)
    kinds = [each["kind"] for each in as_json(region, "--device", "1")[1]["findings"]]
    assert kinds == ["host_pid_wrong"], "what is of no device is of every one"
    code, told = as_json(
        region, "--repair", "--only", "host_pid_wrong", "--container", "tr*", "--device", "GPU-0*"
    )
    assert code == 0
    assert [each["kind"] for each in told["repairs"]] == ["host_pid_wrong"]
    assert region.get("slot_used.total", slot=1) == 2 * GIB


def test_a_repair_that_fails_is_said_with_its_reason_and_the_finding_is_left(region):
    make_ill(region)
    with hami.open_region(region.path, writable=True) as held, held.lock():
        answer = call(*arguments(region, "--repair", "--only", "host_pid_wrong"))
    assert answer.returncode == 3
    failed, *_, total = answer.stdout.splitlines()
    assert failed.startswith(f"not repaired  {POD}/train")
    assert "host_pid_wrong: " in failed
    assert "lock" in failed
    assert "1 warning" in total
    assert "left" in total


def test_the_containers_that_were_examined_are_counted(region):
    other = region.path.parent.with_name(f"{uuid.uuid4()}_serve")
    other.mkdir()
    assert "nothing found in 2 containers" in call(*arguments(region)).stdout
    answer = call(*arguments(region, "--container", "serve"))
    assert "nothing found in 1 container\n" in answer.stdout


def test_on_a_terminal_there_are_colours_and_nothing_raw(region):
    make_ill(region)
    evil = region.path.parent.with_name(f"{POD}_{HOSTILE}")
    evil.mkdir()
    (evil / f"{HOSTILE}.cache").symlink_to(region.path)
    with Terminal(*arguments(region)) as terminal:
        assert terminal.wait() == 3
        assert COLOUR.search(terminal.screen)
        assert "\x1b[2J" not in terminal.screen
        assert "\u202e" not in terminal.screen
        assert r"evil\x1b[2J\u202ename" in terminal.text
        for part in ("dead_process_counted", "Consequence:", "region_missing"):
            assert part in terminal.text


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_watch_gives_one_object_per_line_until_a_signal(region, number):
    process = start(*arguments(region, "--json", "--watch", "0.05"))
    told = json.loads(process.stdout.readline())
    assert (told["findings"], told["repairs"], told["left"]) == ([], None, 0)
    make_ill(region)
    while json.loads(process.stdout.readline())["left"] != 2:
        pass
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 0


def test_where_the_driver_cannot_be_asked_a_note_says_so(region):
    words = [each for each in arguments(region) if each != "--no-driver"]
    answer = call(*words, "--library", "/nowhere/libnvidia-ml.so.1")
    assert answer.returncode == 0
    assert "nothing was compared with the driver's figures" in answer.stderr
