"""`hamiregion ps`, `containers` and `top` on a node of real processes, and a fake driver."""

import io
import json
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from called import call
from containers import needs_namespaces
from fake_nvml.driver import STATE, FakeDriver
from fake_nvml.scenes import CARD, GPU, MIB, MIG, OTHER, SECOND
from gpu_node import GpuNode, Pod, gpu_nodes
from rich.console import Console
from unit.cli_process import (
    COLOUR,
    COMMAND,
    ESCAPES,
    Terminal,
    environment,
    interrupt,
    on_terminal,
    run,
)
from unit.cli_process import start as start_command

from libhamiregion import DeviceUsage, Layout, create_region
from libhamiregion.cli.containers import container_page
from libhamiregion.cli.options import NodeChoice
from libhamiregion.cli.processes import process_page
from libhamiregion.cli.terminal import draw_page
from libhamiregion.node import NvmlSampler, ProcessDeviceRow, Selector
from libhamiregion.node.nvml import NvmlDevice, NvmlProcess, NvmlUtilization

GIB = 1 << 30
POD_LONG = "a-rather-long-name-of-a-deployment-7d9f8b6c5-x2x4z"


@attrs.define
class Scene:
    """One node with everything on it; tests only look."""

    node: GpuNode
    driver: FakeDriver
    bert: Pod
    pids: dict[str, int]

    def arguments(self, verb: str, *more: str) -> tuple[str, ...]:
        return (verb, "--root", str(self.node.root), "--pod-logs", str(self.node.logs), *more)

    def run(self, verb: str, *more: str) -> "subprocess.CompletedProcess[str]":
        library = ("--library", str(self.driver.library)) if verb != "containers" else ()
        return call(*self.arguments(verb, *library, *more))

    def json(self, verb: str, *more: str) -> dict[str, Any]:
        answer = self.run(verb, "--json", *more)
        assert answer.returncode == 0, answer.stderr
        assert answer.stderr == ""
        assert answer.stdout.count("\n") == 1
        found: dict[str, Any] = json.loads(answer.stdout)
        return found

    def terminal(self, verb: str, *more: str, **options: Any) -> Terminal:
        options["env"] = {**self.driver.environment(), **options.get("env", {})}
        return on_terminal(*self.arguments(verb, *more), **options)

    def known(self, processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without what others do on this machine."""
        mine = set(self.pids.values())
        return [each for each in processes if each["pod_uid"] or each["host_pid"] in mine]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("node")
    driver = FakeDriver(nvml_library, directory / "nvml-scene")
    driver.play(CARD)
    with (
        pytest.MonkeyPatch.context() as patch,
        gpu_nodes(directory) as node,
        subprocess.Popen(["sleep", "600"]) as stranger,
    ):
        patch.setenv(STATE, str(driver.state))
        bert = node.add(
            "train",
            pod="bert-0",
            memory_limits=["8GiB", "4GiB"],
            sm_limits=[50, None],
            uuids=[GPU, OTHER],
        )
        working, working_host = bert.attach()
        bert.charge(working, 3 * GIB)
        bert.region.put("slot_util.sm", 41)
        held, held_host = bert.attach()
        bert.charge(held, GIB)
        bert.region.put("slot_status", 2, slot=1)
        dead, _ = bert.attach()
        bert.charge(dead, 2 * GIB)
        bert.inside.tell("kill", dead)
        serve = node.add(
            "serve", pod=POD_LONG, namespace="inference", layout=Layout.V1_1, uuids=[OTHER]
        )
        serve.inside.tell("attach", serve.region.path)
        _, idle = serve.inside.child("fork")
        _, escaped = serve.inside.child("fork")
        node.add("main", pod="whole-gpu", file=False, process=False)
        strange = node.add("main", process=False)
        strange.region.resize(5)
        driver.play(
            CARD,
            SECOND,
            f"process 0 compute {working_host} {3300 * MIB}",
            f"sample 0 {working_host} 100 43 22 1 2",
            f"process 1 compute {serve.inside.host_pid} {500 * MIB}",
            f"process 1 compute {escaped} {700 * MIB}",
            f"process 0 graphics {stranger.pid} {20 * MIB}",
            f"sample 0 {stranger.pid} 200000 7 3 0 0",
            f"name {stranger.pid} /usr/lib/xorg/Xorg :0",
        )
        pids = {
            "working": working_host,
            "held": held_host,
            "serving": serve.inside.host_pid,
            "idle": idle,
            "escaped": escaped,
            "stranger": stranger.pid,
        }
        yield Scene(node, driver, bert, pids)
        stranger.kill()


pytestmark = needs_namespaces


def table(text: str) -> list[dict[str, str]]:
    """The rows of a plain table by its heading; each splits into as many words."""
    heading, *rows = text.splitlines()
    return [dict(zip(heading.split(), row.split(), strict=True)) for row in rows]


# ---- ps -----------------------------------------------------------------------------------------


def test_ps_tells_what_uses_the_gpus(scene: Scene) -> None:
    found = scene.json("ps")
    assert set(found) == {"taken_at_ns", "complete", "driver", "warnings", "processes"}
    assert found["driver"] == {"state": "ok", "message": None, "version": "570.0-fake"}
    assert found["warnings"] == []
    processes = scene.known(found["processes"])
    for process in processes:
        assert list(process) == [
            *("namespace", "pod", "pod_uid", "container", "container_id", "region_path"),
            *("pid", "host_pid", "state", "status", "uid", "user", "command", "slots", "devices"),
        ]
        for device in process["devices"]:
            assert list(device) == [field.name for field in attrs.fields(ProcessDeviceRow)]
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
    assert working["region_path"] == str(scene.bert.region.path)
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


def test_ps_in_a_pipe_is_one_line_per_process_and_device(scene: Scene) -> None:
    answer = run(
        *scene.arguments("ps", "--namespace", "*"),
        env={**scene.driver.environment(), "FORCE_COLOR": "1"},
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
    wide = scene.run("ps", "--wide", "--sort", "pid", "--pod", "bert-0").stdout.splitlines()
    assert wide[0].split()[-3:] == ["USER", "UUID", "COMMAND"]
    assert "container_process.py" in wide[-1]
    assert GPU in wide[-1]


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
def test_ps_selects_and_sorts(
    scene: Scene, options: tuple[str, ...], expected: list[str | None]
) -> None:
    processes = scene.known(scene.json("ps", *options)["processes"])
    wanted = [None if name is None else scene.pids[name] for name in expected]
    found = [each["host_pid"] for each in processes]
    assert found[: len(wanted)] == wanted
    if "--sort" not in options:
        assert len(found) == len(wanted)


def test_where_there_is_no_driver_the_rest_is_shown_and_a_note_says_why(scene: Scene) -> None:
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


def test_ps_from_a_container_says_that_it_cannot_see_all(scene: Scene) -> None:
    inside = ("unshare", "--pid", "--fork", "--mount-proc")
    done = subprocess.run(
        [*inside, *COMMAND, *scene.arguments("ps")],
        env=environment(scene.driver.environment()),
        capture_output=True,
        text=True,
        check=True,
    )
    assert {row["STATE"] for row in table(done.stdout)} <= {"unknown"}
    assert "Note: not all of the node's processes can be seen" in done.stderr
    assert "hostPID: true" in done.stderr


def test_what_a_container_has_too_many_of_is_one_row(tmp_path: Path) -> None:
    with gpu_nodes(tmp_path) as node:
        pod = node.add(uuids=[GPU], process=False)
        for number in range(200):
            pod.region.add_process(4_000_000 + number, {0: MIB})
        answer = call("ps", "--root", str(node.root), "--no-driver")
        *rows, rest = table(answer.stdout)
        assert {(row["STATE"], row["MEM-USED"]) for row in rows} == {("dead", "1MiB")}
        assert rest["PID"] == f"{200 - len(rows)}slots"
        assert rest["MEM-USED"] == f"{200 - len(rows)}MiB"
        (row,) = table(call("containers", "--root", str(node.root)).stdout)
        assert (row["MEM-USED"], row["DEAD"]) == ("200MiB", "200")


# ---- Directories --------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_listed_is_told_and_fails_if_no_other_can(
    scene: Scene, tmp_path: Path
) -> None:
    missing = str(tmp_path / "none")
    for verb in ("ps", "containers"):
        answer = call(verb, "--root", missing, "--root", f"{missing}/*")
        assert answer.returncode == 1
        assert answer.stdout.startswith("POD ")
        warnings = [line for line in answer.stderr.splitlines() if line.startswith("Warning: ")]
        assert [f"Warning: {missing}" in line for line in warnings] == [True, True]
        assert answer.stderr.endswith("Error: none of the directories given could be listed\n")
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


def test_a_region_elsewhere_is_looked_for_only_when_asked(tmp_path: Path) -> None:
    """As in a container without the device plugin; in a /proc that shows no other processes."""
    path = tmp_path / "usage.cache"
    create_region(path, uuids=[GPU])
    (tmp_path / "containers").mkdir()
    done = subprocess.run(
        [
            *("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ATTACH_AND_LOOK),
            *(str(path), str(tmp_path / "containers")),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    without, outside = (json.loads(line)["containers"] for line in done.stdout.splitlines())
    assert without == []
    (found,) = outside
    assert (found["directory"], found["devices"][0]["uuid"]) == (None, GPU)


# ---- ps --nvml ----------------------------------------------------------------------------------


def test_the_drivers_two_lists_need_no_region(scene: Scene) -> None:
    library = ("--library", str(scene.driver.library))
    answer = call("ps", "--nvml", *library)
    assert answer.returncode == 0, answer.stderr
    processes, samples = answer.stdout.split("\n\n")
    heading, *_ = processes.splitlines()
    assert " ".join(heading.split()) == "GPU PID KIND MEM-USED SM MEM ENC DEC UUID NAME"
    lines = {line.split()[1]: line.split(None, 9) for line in processes.splitlines()}
    working, stranger = str(scene.pids["working"]), str(scene.pids["stranger"])
    figures = ("compute", "3.2GiB", "43%", "22%", "1%", "2%")
    assert lines[working] == ["0", working, *figures, GPU, "-"]
    assert lines[stranger][-1] == "/usr/lib/xorg/Xorg :0"
    rows = {row["PID"]: row for row in table(samples)}
    assert set(rows) == {working, stranger}
    assert rows[stranger]["SM"] == "7%"

    found = json.loads(call("ps", "--nvml", "--json", "--device", "0", *library).stdout)
    assert list(found) == ["taken_at_ns", "driver", "devices", "processes", "samples"]
    kinds = {"devices": NvmlDevice, "processes": NvmlProcess, "samples": NvmlUtilization}
    for key, cls in kinds.items():
        for each in found[key]:
            assert list(each) == [field.name for field in attrs.fields(cls)]
    assert {each["device_index"] for each in found["processes"]} == {0}
    assert len(found["devices"]) == 2


def test_the_drivers_lists_on_a_terminal_and_inside_a_container(
    fake_driver: FakeDriver, tmp_path: Path
) -> None:
    fake_driver.play(CARD, *MIG, "error nvmlDeviceGetProcessUtilization 4 1")
    shown = on_terminal("ps", "--nvml", env=fake_driver.environment(), columns=90)
    for words in ("301", "GPU 1: ", "No samples of the last second."):
        assert words in shown.text
    assert max(map(len, shown.text.splitlines())) <= 90
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *COMMAND, "ps", "--nvml"],
        env=environment(fake_driver.environment()),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "301" in done.stdout
    assert "not the host's pid namespace" in done.stderr


def test_without_a_driver_its_lists_are_a_failure_and_they_know_no_pods() -> None:
    none = ("ps", "--nvml", "--library", "/nonexistent/libnvidia-ml.so.1")
    answer = call(*none)
    assert answer.returncode == 1
    assert answer.stderr.startswith("Error: dlopen: /nonexistent/libnvidia-ml.so.1: ")
    answer = call(*none, "--json")
    assert answer.returncode == 1
    assert json.loads(answer.stdout)["driver"]["state"] == "library_not_found"
    for options in (("--pod", "x"), ("--root", "/x"), ("--no-driver",), ("-w",), ("--outside",)):
        answer = call("ps", "--nvml", *options)
        assert answer.returncode == 2
        assert "--nvml" in answer.stderr


# ---- containers ---------------------------------------------------------------------------------


def test_containers_tells_limits_usage_and_why_there_is_no_region(scene: Scene) -> None:
    found = scene.json("containers")
    assert list(found) == ["taken_at_ns", "complete", "warnings", "containers"]
    containers = found["containers"]
    by_pod = {each["pod"]: each for each in containers}
    assert [each["pod"] for each in containers] == [POD_LONG, "bert-0", "whole-gpu", None]
    bert = by_pod["bert-0"]
    assert set(bert) >= {
        *("namespace", "pod", "pod_uid", "container", "container_id"),
        *("directory", "region_path", "other_files", "reason", "message"),
        *("layout", "device_count", "priority", "utilization_switch", "recent_kernel"),
        *("last_kernel_time_s", "owner_pid", "settled", "lock", "processes", "devices"),
    }
    assert bert["directory"] == str(scene.bert.directory)
    assert (bert["layout"], bert["reason"], bert["priority"]) == ("1.2", None, 1)
    assert bert["processes"] == {"alive": 2, "dead": 1, "unknown": 0, "unlisted": 0}
    first, second = bert["devices"]
    assert list(first) == [field.name for field in attrs.fields(DeviceUsage)]
    assert (first["memory_used_bytes"], first["memory_limit_bytes"]) == (6 * GIB, 8 * GIB)
    assert (first["sm_util_percent"], first["sm_limit_percent"]) == (41, 50)
    assert second["sm_limit_percent"] is None
    assert by_pod[POD_LONG]["processes"]["unlisted"] == 2
    assert (by_pod["whole-gpu"]["reason"], by_pod["whole-gpu"]["devices"]) == ("no_file", [])
    assert by_pod["whole-gpu"]["processes"] is None
    assert by_pod[None]["reason"] == "not_ready"
    assert "5 bytes" in by_pod[None]["message"]


def test_containers_in_a_pipe_are_two_tables(scene: Scene) -> None:
    answer = scene.run("containers")
    assert answer.returncode == 0, answer.stderr
    regions, missing = answer.stdout.split("\n\n")
    rows = [row for row in table(regions) if row["POD"] == "research/bert-0"]
    assert rows[0] == {
        "POD": "research/bert-0",
        "CONTAINER": "train",
        "LAYOUT": "1.2",
        "DEVICE": "0",
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
    assert heading.split() == ["POD", "CONTAINER", "REASON", "MESSAGE"]
    assert [line.split(None, 3)[2] for line in reasons] == ["no_file", "not_ready"]
    answer = scene.run("containers", "--device", "1", "--wide")
    (row,) = table(answer.stdout)
    assert (row["DEVICE"], row["UUID"]) == ("1", OTHER)
    assert row["FILE"] == str(scene.bert.region.path)


def test_a_held_lock_is_told_with_its_signature(tmp_path: Path) -> None:
    with gpu_nodes(tmp_path) as node:
        pod = node.add(uuids=[GPU], process=False)
        pod.region.add_process(4_000_000)
        for owner, word in ((4_000_000, "dead:4000000"), (7, "pid:7"), (2**30 + 1, "tool")):
            pod.region.put("owner_pid", owner)
            (row,) = table(call("containers", "--root", str(node.root)).stdout)
            assert row["LOCK"] == word


# ---- On a terminal ------------------------------------------------------------------------------


def test_a_terminal_gets_colours_unless_they_are_switched_off(scene: Scene) -> None:
    for verb, words in (("ps", "escaped"), ("containers", "+1 dead")):
        shown = scene.terminal(verb, "--wide", "--namespace", "*", columns=124)
        assert COLOUR.search(shown.screen)
        assert max(len(line) for line in shown.text.splitlines()) <= 124
        assert words in shown.text
    plain = scene.terminal("ps", "--namespace", "*", env={"NO_COLOR": "1"})
    assert not COLOUR.search(plain.screen)
    assert "bert-0" in plain.text


def test_every_width_shows_what_fits(scene: Scene) -> None:
    """Whole words from 80 columns on; the uuids, pods and namespaces where there is room."""
    place = NodeChoice((str(scene.node.root),), False, "/proc", str(scene.node.logs))
    with place.open() as node, NvmlSampler(scene.driver.library) as sampler:
        for wide in (False, True):
            process = process_page(node, sampler, Selector(), place, sort="name", wide=wide)
            container = container_page(node, Selector(), place, wide=wide)
            for page, last, used in (
                (process, "SM drv", "3 GiB"),
                (container, "processes", "6 GiB"),
            ):
                for columns in (40, 60, 89, 90, 107, 108, 124, 200):
                    file = io.StringIO()
                    drawn = draw_page(page, columns)
                    Console(file=file, width=columns, color_system=None).print(drawn)
                    text = file.getvalue()
                    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
                    if columns >= 80 and not wide:
                        assert "bert-0/train" in text or "bert-0  " in text
                        assert last in text
                        assert used in text
                    if columns == 200:
                        assert "research/bert-0" in text
                        assert (GPU[:12] in text) == wide


# ---- Again and again ----------------------------------------------------------------------------


def test_watching_follows_the_node_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """One object per line, in which processes, containers and directories come and go."""
    with gpu_nodes(tmp_path) as node:
        later = tmp_path / "later"
        pod = node.add(pod="bert-0", uuids=[GPU])
        common = ("--root", str(node.root), "--pod-logs", str(node.logs), "--json")
        roots = ("--root", str(later), "--watch", "0.05")
        with (
            start_command("ps", *common, "--no-driver", *roots) as ps,
            start_command("containers", *common, *roots) as containers,
        ):
            assert ps.stdout is not None
            assert containers.stdout is not None
            objects = (json.loads(line) for line in ps.stdout)
            assert next(objects)["processes"] == []
            pid, host_pid = pod.attach()
            grown = next(each for each in objects if each["processes"])
            assert [each["host_pid"] for each in grown["processes"]] == [host_pid]
            pod.inside.tell("kill", pid)
            assert next(each for each in objects if each["processes"][0]["state"] == "dead")
            told = (json.loads(line) for line in containers.stdout)
            first = next(told)
            assert [each["pod"] for each in first["containers"]] == ["bert-0"]
            assert first["warnings"] == [f"{later}: No such file or directory"]
            (later / "uid_main").mkdir(parents=True)
            found = next(each for each in told if not each["warnings"])["containers"]
            assert [each["reason"] for each in found] == [None, "no_file"]
            for process in (ps, containers):
                interrupt(process)
                process.communicate(timeout=30)
                assert process.returncode == 0


# ---- top ----------------------------------------------------------------------------------------


def pictures(screen: str) -> list[str]:
    """The whole pictures on a terminal, without escapes."""
    return ESCAPES.sub("", screen).split("[q] quit")[:-1]


def in_memory_order(picture: str) -> bool:
    return picture.index("dead") < picture.index("escaped")


def test_top_in_a_pipe_is_ps_by_memory(scene: Scene) -> None:
    answer = scene.run("top", "--namespace", "*")
    assert answer.returncode == 0, answer.stderr
    rows = table(answer.stdout)
    assert rows[0]["HOST-PID"] == str(scene.pids["working"])
    assert rows[1]["STATE"] == "dead"
    found = json.loads(scene.run("top", "--namespace", "*", "--json", "--sort", "name").stdout)
    assert found["processes"][0]["pod"] == POD_LONG


def test_top_on_a_terminal_takes_keys_and_leaves_the_terminal_as_it_was(scene: Scene) -> None:
    arguments = scene.arguments("top", "--namespace", "*")
    with Terminal(*arguments, env=scene.driver.environment(), columns=130) as terminal:
        before = termios.tcgetattr(terminal.master)
        terminal.wait_for(lambda screen: any("by the driver" in each for each in pictures(screen)))
        assert termios.tcgetattr(terminal.master)[3] & termios.ICANON == 0
        assert "NVIDIA H100 80GB HBM3" in terminal.text
        assert in_memory_order(pictures(terminal.screen)[0])
        terminal.type("\x1b[A")
        terminal.type("n")
        terminal.wait_for(lambda screen: not in_memory_order(pictures(screen)[-1]))
        terminal.type("q")
        assert terminal.wait() == 0
        assert termios.tcgetattr(terminal.master) == before
        assert terminal.screen.count("\x1b[?25l") == terminal.screen.count("\x1b[?25h")


def test_top_shows_what_fits_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with gpu_nodes(tmp_path) as node:
        for _ in range(3):
            pod = node.add(uuids=[GPU], process=False)
            for number in range(10):
                pod.region.add_process(4_000_000 + number, {0: (number + 1) * MIB})
        arguments = ("--root", str(node.root), "--no-driver")
        with Terminal("top", *arguments, rows=24) as terminal:
            terminal.wait_for(lambda screen: "[q] quit" in screen)
            terminal.type("\x03")
            assert terminal.wait() == 0
        shown = pictures(terminal.screen)[-1]
        assert "30 processes of 3 containers; 165 MiB counted" in shown
        hidden = int(shown.split(" more")[0].split("and ")[-1])
        assert shown.count("dead") + hidden == 30
        assert len(shown.splitlines()) <= 24
