"""`hamiregion ps` and `containers` on a node of real processes, and a fake driver."""

import json
import os
import pwd
import sys

import pytest
from fake_nvml.scenes import CARD, GPU, MIB, OTHER, SECOND
from support.cli_scene import GIB, POD_LONG, table
from support.command_line import COMMAND, call, environment, refused, run
from support.containers import needs_namespaces
from support.node_scene import NodeScene
from support.process import finished

from libhamiregion import create_region

pytestmark = needs_namespaces


# ---- ps -----------------------------------------------------------------------------------------


def test_ps_tells_what_uses_the_gpus(scene):
    found = scene.json("ps")
    assert found["driver"] == {"state": "ok", "message": None, "version": "570.0-fake"}
    assert found["warnings"] == []
    processes = scene.known(found["processes"])
    pids = scene.pids
    assert [(each["pod"], each["state"], each["host_pid"]) for each in processes] == [
        (POD_LONG, "alive", pids["serving"]),
        (POD_LONG, "unlisted", pids["idle"]),
        (POD_LONG, "escaped", pids["escaped"]),
        ("bert-0", "alive", pids["working"]),
        ("bert-0", "alive", pids["held"]),
        ("bert-0", "dead", None),
        (None, "unmanaged", pids["stranger"]),
    ]
    working = processes[3]
    assert (working["namespace"], working["container"]) == ("research", "train")
    assert working["region_path"] == str(scene.bert.path)
    assert working["devices"][0] == {
        "index": 0,
        "uuid": GPU,
        "memory_used_bytes": 3 * GIB,
        "memory_driver_bytes": 3300 * MIB,
        "sm_util_percent": 41,
        "driver_sm_percent": 43,
        "driver_memory_percent": 22,
        "driver_enc_percent": 1,
        "driver_dec_percent": 2,
        "driver_index": 0,
    }
    assert [each["status"] for each in processes[3:5]] == [1, 2]
    assert processes[6]["command"] == "sleep 600"


def test_ps_in_a_pipe_is_one_line_per_process_and_device(scene):
    answer = run(
        *scene.arguments("ps", "--namespace", "*"),
        env=scene.driver.environment(),
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "\x1b" not in answer.stdout
    rows = table(answer.stdout)
    states = ["alive", "unlisted", "escaped", "alive", "suspended", "dead"]
    assert [row["STATE"] for row in rows] == states
    assert rows[3] == {
        "POD": "research/bert-0",
        "CONTAINER": "train",
        "DEVICE": "0",
        "GPU": "0",
        "PID": "2",
        "HOST-PID": str(scene.pids["working"]),
        "STATE": "alive",
        "MEM-USED": "3GiB",
        "MEM-DRIVER": "3.2GiB",
        "SM": "41%",
        "SM-DRIVER": "43%",
    }
    assert (rows[2]["DEVICE"], rows[2]["GPU"], rows[2]["MEM-USED"]) == ("0", "1", "-")
    wide = scene.run("ps", "-o", "wide", "--sort", "pid", "--pod", "bert-0").stdout.splitlines()
    assert wide[0].split()[-3:] == ["USER", "UUID", "COMMAND"]
    assert "container_forker.py" in wide[-1]
    assert GPU in wide[-1]


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--pod", "bert-*"), ["working", "held", None]),
        (("--namespace", "inf*", "--container", "serve"), ["serving", "idle", "escaped"]),
        (("--namespace", "*", "--device", "0"), ["serving", "escaped", "working", "held", None]),
        (("--device", "GPU-1111*"), ["serving", "escaped"]),
        (("--device", "1", "--pod", "bert-0"), []),
        (("--sort", "memory", "--namespace", "*"), ["working", None, "held", "escaped"]),
        (("--sort", "sm", "--namespace", "*"), ["working"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_ps_selects_and_sorts(scene, options, expected):
    processes = scene.known(scene.json("ps", *options)["processes"])
    wanted = [None if name is None else scene.pids[name] for name in expected]
    found = [each["host_pid"] for each in processes]
    assert found[: len(wanted)] == wanted
    if "--sort" not in options:
        assert len(found) == len(wanted)


def test_where_there_is_no_driver_the_rest_is_shown_and_a_note_says_why(scene):
    assert scene.json("ps", "--no-driver")["driver"] is None
    none = ("--library", "/nonexistent/libnvidia-ml.so.1")
    answer = scene.run("ps", *none)
    assert answer.returncode == 0
    assert "research/bert-0" in answer.stdout
    said = answer.stderr
    assert said.startswith("Note: no figures of the driver: ")
    assert said.count("\n") == 1
    found = scene.json("ps", *none)
    assert found["driver"]["state"] == "library_not_found"
    states = {each["state"] for each in scene.known(found["processes"])}
    assert states == {"alive", "dead", "unlisted"}
    shown = scene.terminal("ps", *none, columns=100)
    assert "no figures of the driver" in " ".join(shown.text.split())
    assert "driver  " not in shown.text.splitlines()[0]


@pytest.mark.parametrize("verb", ["ps", "containers"])
def test_a_gpu_that_fails_is_said_and_can_be_read_by_programs(
    verb, tmp_path, fake_driver, monkeypatch
):
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake_driver.state))
    fake_driver.play(CARD, SECOND, "error nvmlDeviceGetHandleByIndex_v2 15 1")
    options = (verb, "--root", str(tmp_path), "--library", str(fake_driver.library))
    said = call(*options).stderr
    assert "Note: GPU 1 (no uuid known) does not work: gpu_is_lost, " in said
    found = json.loads(call(*options, "--json").stdout)
    assert found["gpus"] == [
        {"index": 0, "uuid": GPU, "state": "ok"},
        {"index": 1, "uuid": None, "state": "gpu_is_lost"},
    ]


def test_containers_by_gpu_sums_up_limits(scene):
    rows = {row["UUID"]: row for row in table(scene.run("containers", "--by", "gpu").stdout)}
    # bert has 8 and 4 GiB; serve and one without names are unlimited.
    assert (rows[GPU]["MEM-LIMITS"], rows[GPU]["SM-LIMITS"]) == ("8GiB", "50%")
    assert (rows[OTHER]["MEM-LIMITS"], rows[OTHER]["MEM-TOTAL"]) == ("44GiB", "40GiB")
    found = {each["uuid"]: each for each in scene.json("containers")["by_gpu"]}
    assert found[OTHER]["memory_limits_bytes"] == 44 * GIB


@pytest.mark.slow
def test_ps_from_a_container_says_that_it_cannot_see_all(scene):
    """A process of another pid namespace is unknown, never dead."""
    inside = ("unshare", "--pid", "--fork", "--mount-proc")
    done = finished(
        [*inside, *COMMAND, *scene.arguments("ps")],
        env=environment(scene.driver.environment()),
        check=True,
    )
    states = [(row["STATE"], row["PID"]) for row in table(done.stdout)]
    assert {state for state, _ in states} == {"unknown"}, states
    assert "Note: not all of the node's processes can be seen" in done.stderr
    assert "hostPID: true" in done.stderr


def test_ps_and_mine_show_commands_by_a_containers_own_proc(tmp_path):
    script = """
import os, subprocess, sys
from libhamiregion.testing import FakeNode
with FakeNode(sys.argv[1]) as node:
    region = str(node.add(processes=1).region)
    words = ("ps", "-o", "wide", "--no-driver", "--root", str(node.root)), ("mine",)
    for each in words:
        subprocess.run([*sys.argv[2:], *each], env={**os.environ, VARIABLE: region}, check=True)
""".replace("VARIABLE", repr("CUDA_DEVICE_MEMORY_SHARED_CACHE"))
    done = finished(
        [
            *("unshare", "--pid", "--fork", "--mount-proc"),
            *(sys.executable, "-c", script, str(tmp_path / "node"), *COMMAND),
        ],
        env=environment(),
        check=True,
    )
    user = pwd.getpwuid(os.getuid()).pw_name
    rows = [line for line in done.stdout.splitlines() if "libhamiregion.testing.process" in line]
    assert len(rows) == 2
    assert all(f"  {user}  " in row for row in rows)


def test_a_directory_that_cannot_be_listed_is_told_and_fails_if_no_other_can(scene, tmp_path):
    missing = str(tmp_path / "none")
    for verb in ("ps", "containers"):
        answer = call(verb, "--root", missing, "--root", f"{missing}/*")
        assert answer.returncode == 1
        # What the driver lists is an answer; a heading alone would look like one.
        assert len(answer.stdout.splitlines()) != 1
        warnings = [line for line in answer.stderr.splitlines() if line.startswith("Warning: ")]
        assert [f"Warning: {missing}" in line for line in warnings] == [True, True]
        assert "Error: none of the directories given can be listed: " in answer.stderr
        answer = scene.run(verb, "--root", missing)
        assert answer.returncode == 0
        assert f"Warning: {missing}: No such file or directory\n" in answer.stderr
        assert "research/bert-0" in answer.stdout
    found = json.loads(call("ps", "--root", missing, "--json").stdout)
    assert found["warnings"] == [f"{missing}: No such file or directory"]


ATTACH_AND_LOOK = """
import subprocess, sys, libhamiregion as hami
region, root = sys.argv[1:]
with hami.open_region(region, writable=True) as opened, opened.attach():
    look = [sys.executable, "-m", "libhamiregion", "containers", "--json", "--root", root]
    for more in ([], ["--outside"]):
        subprocess.run([*look, *more], check=True)
"""


def test_a_region_elsewhere_is_looked_for_only_when_asked(tmp_path):
    """As in a container without the device plugin; in a /proc that shows no other processes."""
    path = tmp_path / "usage.cache"
    create_region(path, uuids=[GPU])
    (tmp_path / "containers").mkdir()
    done = finished(
        [
            *("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ATTACH_AND_LOOK),
            *(str(path), str(tmp_path / "containers")),
        ],
        env=environment(),
        check=True,
    )
    without, outside = (json.loads(line)["containers"] for line in done.stdout.splitlines())
    assert without == []
    (found,) = outside
    assert (found["directory"], found["devices"][0]["uuid"]) == (None, GPU)


# ---- containers ---------------------------------------------------------------------------------


def test_containers_tells_limits_usage_and_why_there_is_no_region(scene):
    found = scene.json("containers")
    containers = found["containers"]
    by_pod = {each["pod"]: each for each in containers}
    assert [each["pod"] for each in containers] == [POD_LONG, "bert-0", "whole-gpu", None]
    bert = by_pod["bert-0"]
    assert bert["directory"] == str(scene.bert.directory)
    assert (bert["layout"], bert["reason"], bert["priority"]) == ("1.2", None, 1)
    assert bert["processes"] == {"alive": 2, "dead": 1, "unknown": 0, "unlisted": 0}
    first, second = bert["devices"]
    assert (first["memory_used_bytes"], first["memory_limit_bytes"]) == (6 * GIB, 8 * GIB)
    assert (first["sm_util_percent"], first["sm_limit_percent"]) == (41, 50)
    assert second["sm_limit_percent"] is None
    assert by_pod[POD_LONG]["processes"]["unlisted"] == 2
    assert (by_pod["whole-gpu"]["reason"], by_pod["whole-gpu"]["devices"]) == ("no_file", [])
    assert by_pod["whole-gpu"]["processes"] is None
    assert by_pod[None]["reason"] == "truncated"
    assert "5 bytes" in by_pod[None]["message"]


def test_containers_in_a_pipe_are_two_tables(scene):
    answer = scene.run("containers")
    assert answer.returncode == 0, answer.stderr
    regions, missing = answer.stdout.split("\n\n")
    rows = [row for row in table(regions) if row["POD"] == "research/bert-0"]
    assert rows[0] == {
        "POD": "research/bert-0",
        "CONTAINER": "train",
        "LAYOUT": "1.2",
        "DEVICE": "0",
        "GPU": "0",
        "MEM-USED": "6GiB",
        "MEM-LIMIT": "8GiB",
        "SM": "41%",
        "SM-LIMIT": "50%",
        "ALIVE": "2",
        "DEAD": "1",
        "UNKNOWN": "0",
        "PRIORITY": "1",
        "LOCK": "free",
    }
    assert [row["DEVICE"] for row in rows] == ["0", "1"]
    heading, *reasons = missing.splitlines()
    figures = ["GPU", "MEM-DRIVER", "SM-DRIVER"]
    assert heading.split() == ["POD", "CONTAINER", *figures, "REASON", "MESSAGE"]
    assert [line.split(None, 6)[5] for line in reasons] == ["no_file", "truncated"]
    answer = scene.run("containers", "--device", "1", "-o", "wide")
    (row,) = table(answer.stdout)
    assert (row["DEVICE"], row["UUID"]) == ("1", OTHER)
    assert row["FILE"] == str(scene.bert.path)


def test_a_held_lock_is_told_with_its_signature(tmp_path):
    with NodeScene(tmp_path) as node:
        pod = node.container(uuids=[GPU])
        pod.add_process(4_000_000)
        for owner, word in ((4_000_000, "dead:4000000"), (7, "pid:7"), (2**30 + 1, "tool")):
            pod.put("owner_pid", owner)
            (row,) = table(call("containers", "--root", str(node.root)).stdout)
            assert row["LOCK"] == word


@pytest.mark.parametrize("verb", ["ps", "containers", "top", "doctor"])
def test_a_node_without_containers_directories_is_a_failure(verb, tmp_path, monkeypatch):
    monkeypatch.setattr("libhamiregion.node.roots.DEFAULT_ROOTS", (str(tmp_path / "none"),))
    monkeypatch.setattr("libhamiregion.node.roots.run_bases", lambda _: [])
    for variable in ("HOOK_PATH", "HAMI_VGPU_CACHE_ROOT", "CONTAINER_VGPU_MOUNT"):
        monkeypatch.delenv(variable, raising=False)
    said = refused(verb, "--no-driver", code=1)
    assert f"looked for {tmp_path}/none" in said
    assert "--outside" in said
    # Other programs of this machine may have regions, with something wrong.
    assert call(verb, "--outside", "--no-driver").returncode in (0, 3)


@pytest.mark.parametrize("verb", ["ps", "containers", "top", "doctor"])
def test_a_node_without_hami_is_none_if_the_driver_answers(
    verb, tmp_path, monkeypatch, fake_driver
):
    monkeypatch.setattr("libhamiregion.node.roots.DEFAULT_ROOTS", (str(tmp_path / "none"),))
    monkeypatch.setattr("libhamiregion.node.roots.run_bases", lambda _: [])
    for variable in ("HOOK_PATH", "CONTAINER_VGPU_MOUNT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("FAKE_NVML_STATE", str(fake_driver.state))
    fake_driver.play(CARD)
    answer = call(verb, "--library", str(fake_driver.library))
    assert answer.returncode == 0
    assert answer.stderr.startswith("Note: ")
    assert "only the driver's figures" in answer.stderr
    given = call(verb, "--library", str(fake_driver.library), "--root", str(tmp_path / "none"))
    assert given.returncode == 1


@pytest.mark.parametrize("verb", ["ps", "containers", "top"])
def test_a_selection_without_a_match_lists_what_there_is(verb, scene):
    answer = scene.run(verb, "--pod", "nosuch")
    assert answer.returncode == 1
    assert "research/bert-0/train" in answer.stderr
    # One that has no process now is selected all the same.
    assert scene.run(verb, "--pod", "whole-gpu").returncode == 0


def test_gpu_selects_by_the_drivers_index_and_device_by_the_containers(scene):
    """The second container has the node's GPU 1 as its device 0."""
    (serve,) = [
        row
        for row in table(scene.run("containers", "--gpu", "1").stdout.partition("\n\n")[0])
        if row["POD"].startswith("inference/")
    ]
    assert (serve["DEVICE"], serve["GPU"]) == ("0", "1")
    for verb in ("ps", "top"):
        found = {}
        for gpu in ("0", "1"):
            rows = table(scene.run(verb, "--gpu", gpu).stdout)
            assert {row["GPU"] for row in rows} == {gpu}
            found[gpu] = [row["HOST-PID"] for row in rows]
        assert str(scene.pids["working"]) in found["0"]
        assert str(scene.pids["escaped"]) in found["1"]
        both = table(scene.run(verb, "--gpu", "0", "--gpu", "1").stdout)
        assert sorted(row["HOST-PID"] for row in both) == sorted(found["0"] + found["1"])


@pytest.mark.parametrize("verb", ["ps", "containers", "top"])
def test_a_gpu_that_the_driver_does_not_have_is_a_failure_that_lists_its_own(verb, scene):
    answer = scene.run(verb, "--gpu", "0", "--gpu", "7")
    assert (answer.returncode, "GPU 7 is not known: there is 0 (" in answer.stderr) == (1, True)
    assert "1 (" in answer.stderr
    answer = scene.run(verb, "--gpu", "0", "--no-driver")
    assert (answer.returncode, "the driver was not asked" in answer.stderr) == (1, True)
