"""`kubectl hamiregion`: look-ups at a real API server, and the real program on three fake nodes.

A stand-in for kubectl passes all but `exec` on to the real one. No kubelet runs here, so `exec`
starts the program on the fake node of that pod.
"""

import ast
import contextlib
import json
import os
import pty
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from api_server import PATCH, Cluster, pods_path
from chart import CHART, NAMESPACE, documents, pod_of
from support.command_line import call
from support.process import finished
from support.wait import eventually

from libhamiregion import open_region
from libhamiregion.cli.verbs import hamiregion
from libhamiregion.testing import FakeNode
from libhamiregion.units import GIB

PLUGIN = CHART.parents[1] / "kubectl-hamiregion"
NODES = ("gpu-1", "gpu-2", "gpu-3")
# What a pod's name says to do instead of, or before, running the program.
STAND_IN = """\
#!{python}
import json, os, subprocess, sys, time
words = sys.argv[1:]
if "exec" not in words:
    os.execv({kubectl!r}, [{kubectl!r}, *words])
scene = json.load(open({scene!r}))
at = words.index("exec")
assert words[at + 1] == "-n" and words[at + 4] == "-c", words
pod, command = words[at + 3], words[words.index("--") + 1:]
assert command[0] == "hamiregion", words
node = scene[pod]
is_shown = "--from" in command
with open({scene!r} + (".shown" if is_shown else ".log"), "a") as log:
    log.write(pod + "\\n")
time.sleep(node.get("delay_s", 0))
program = [sys.executable, "-m", "libhamiregion", *command[1:]]
if "--watch=5" in command:
    os.execv(sys.executable, [*program, *node["place"]])
done = subprocess.run([*program, *([] if is_shown else node["place"])], capture_output=True)
out = node["out"].encode() if "out" in node else done.stdout
sys.stdout.buffer.write(out[: node.get("bytes", len(out))])
sys.stderr.buffer.write(done.stderr)
sys.exit(node.get("code", done.returncode))
"""


Done = subprocess.CompletedProcess[str]
Process = subprocess.Popen[str]


class Scene:
    """Three nodes with a container each, and our pods in the cluster."""

    def __init__(self, cluster: Cluster, directory: Path, fakes: dict[str, FakeNode]) -> None:
        self.cluster = cluster
        self.directory = directory
        self.fakes = fakes
        self.file = directory / "scene.json"
        self.kubectl = directory / "kubectl"
        text = STAND_IN.format(
            python=sys.executable, kubectl=str(cluster.kubectl), scene=str(self.file)
        )
        self.kubectl.write_text(text)
        self.kubectl.chmod(0o755)
        self.change()

    def change(self, **changes: dict[str, Any]) -> None:
        """What `exec` does on a node, such as `gpu_2={"delay_s": 60}`."""
        scene = {
            f"hamiregion-{node}": {
                "place": ["--root", str(fake.root), "--pod-logs", str(fake.pod_logs)],
                **changes.get(node.replace("-", "_"), {}),
            }
            for node, fake in self.fakes.items()
        }
        self.file.write_text(json.dumps(scene))
        self.log.unlink(missing_ok=True)
        self.file.with_suffix(".json.shown").unlink(missing_ok=True)

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".json.log")

    def asked(self) -> list[str]:
        """The pods in which something ran."""
        return sorted(self.log.read_text().split()) if self.log.exists() else []

    def shown(self) -> list[str]:
        """The pods in which documents were shown."""
        file = self.file.with_suffix(".json.shown")
        return file.read_text().split() if file.exists() else []

    def start(self, *words: str, deadline_s: float = 30, **streams: Any) -> Process:
        config = self.cluster.kubeconfig(self.directory / "config")
        return subprocess.Popen(
            [sys.executable, PLUGIN, *words, "--kubeconfig", config],
            env={
                **os.environ,
                "KUBECTL": str(self.kubectl),
                "HAMIREGION_DEADLINE_S": str(deadline_s),
            },
            stdin=subprocess.DEVNULL,
            text=True,
            **streams,
        )

    def run(self, *words: str, deadline_s: float = 30) -> Done:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(*words, deadline_s=deadline_s, **streams) as process:
            out, err = process.communicate()
        return Done(process.args, process.returncode, out, err)


def our_pod(
    cluster: Cluster,
    node: str,
    mode: str,
    *,
    name: str = "",
    namespace: str = NAMESPACE,
    phase: str = "Running",
    flavor: str = "hami",
    **changes: Any,
) -> str:
    """A pod as the chart's DaemonSet makes it on a node; returns its path."""
    values = {"mode": mode, "hamiMonitor": "absent", "flavor": flavor}
    template = pod_of(documents(values))
    name = name or f"hamiregion-{node}"
    metadata = {**template["metadata"], "name": name}
    spec = {**template["spec"], "nodeName": node, **changes}
    cluster.must("POST", pods_path(namespace), {"metadata": metadata, "spec": spec})
    path = pods_path(namespace, name)
    cluster.must("PATCH", f"{path}/status", {"status": {"phase": phase}}, kind=PATCH)
    return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("plugin")
    fakes = {node: FakeNode(directory / node) for node in NODES}
    try:
        with Cluster(directory) as cluster:
            for name in (NAMESPACE, "research", "sales"):
                cluster.namespace(name)
            for number, (node, fake) in enumerate(fakes.items()):
                labels = {"pool": "a" if number < 2 else "b"}
                node_object = {"metadata": {"name": node, "labels": labels}}
                cluster.must("POST", "/api/v1/nodes", node_object)
                # The exporter runs on the last node.
                our_pod(cluster, node, "exporter" if node == "gpu-3" else "agent")
                cluster.pod("research", f"bert-{number}", node)
                fake.add("train", pod=f"bert-{number}", namespace="research")
            cluster.pod("sales", "bert-0", "gpu-2")
            cluster.pod("research", "waiting", "")
            yield Scene(cluster, directory, fakes)
    finally:
        for fake in fakes.values():
            fake.close()


@pytest.fixture(autouse=True)
def calm(scene) -> None:
    scene.change()


def limit_of(scene: Scene, node: str) -> int | None:
    (container,) = scene.fakes[node].containers
    assert container.region is not None
    with open_region(container.region) as region:
        return region.memory_limit(0)


# ---- one pod -------------------------------------------------------------------------------------


def test_a_limit_is_set_on_the_node_of_the_named_pod(scene):
    words = ("limits", "set", "-n", "research", "bert-1", "--device", "0", "--memory", "6GiB")
    done = scene.run(*words)
    assert done.returncode == 0, done.stderr
    assert "6 GiB" in done.stdout
    assert scene.asked() == ["hamiregion-gpu-2"]
    assert [limit_of(scene, node) for node in NODES] == [8 * GIB, 6 * GIB, 8 * GIB]


@pytest.mark.parametrize(
    "words",
    [
        ("ps", "-n", "research", "bert-0"),
        ("containers", "research/bert-0/train"),
        ("ps", "research/bert-0"),
        ("show", "-A", "bert-1"),
        ("limits", "get", "bert-0/train", "-n", "research", "-o", "json"),
    ],
    ids=" ".join,
)
def test_reading_verbs_show_the_named_pod_alone(scene, words):
    done = scene.run(*words)
    assert done.returncode == 0, done.stderr
    pod = "bert-1" if "bert-1" in words else "bert-0"
    node = "gpu-2" if pod == "bert-1" else "gpu-1"
    (container,) = scene.fakes[node].containers
    assert pod in done.stdout or container.pod_uid in done.stdout or "8589934592" in done.stdout
    assert scene.asked() == [f"hamiregion-{node}"]


def test_exit_codes_of_the_verb_are_those_of_the_plugin(scene):
    assert scene.run("limits", "set", "-n", "research", "bert-0").returncode == 2
    assert scene.run("doctor", "research/bert-0/train", "--only", "no_kind").returncode == 2
    scene.change(gpu_1={"code": 3})
    assert scene.run("doctor", "-n", "research", "bert-0").returncode == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ps", "-n", "research", "bert-9"), "no pods are called bert-9"),
        (("show", "-A", "bert-0"), "2 pods are called bert-0: give -n NAMESPACE"),
        (("show", "-n", "research", "waiting"), "is on no node yet"),
        (("ps", "--node", "gpu-1", "--node", "cpu-1"), "no pod of ours is on cpu-1"),
        (("ps", "--context", "nothing"), "context"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_failed_look_up_is_one_line(scene, words, message):
    done = scene.run(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert scene.asked() == []


def test_a_name_is_typed_as_it_is_printed(scene):
    (container,) = scene.fakes["gpu-1"].containers
    for printed in ("research/bert-0", f"research/bert-0@{container.pod_uid}/train"):
        done = scene.run("limits", "get", printed)
        assert done.returncode == 0, done.stderr
    assert scene.asked() == ["hamiregion-gpu-1"] * 2


def test_of_several_pods_none_is_left_out_in_silence(scene):
    for verb in ("doctor", "ps"):
        done = scene.run(verb, "-n", "research", "bert-0", "bert-1")
        assert (done.returncode, "name one pod, not 2" in done.stderr) == (2, True)
    assert scene.asked() == []
    done = scene.run("containers", "--all", "bert-[12]")
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [
        ["gpu-2", "research/bert-1"],
        ["gpu-3", "research/bert-2"],
    ]
    assert done.returncode == 0
    for words in (("limits", "get"), ("limits", "set", "--all", "--memory", "7GiB")):
        done = scene.run(*words)
        assert (done.returncode, "name a pod" in done.stderr) == (2, True)
    # A name that no node has is an error.
    done = scene.run("containers", "--all", "bert-9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no bert-9" in done.stderr


def test_all_containers_of_all_nodes_have_a_line_each(scene):
    fake = scene.fakes["gpu-1"]
    second = fake.add("serve", pod="bert-0", namespace="research", processes=0)
    try:
        done = scene.run("limits", "get", "--all", "--json")
    finally:
        fake.remove(second)
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["node"], each["answer"]["container"]) for each in answers] == [
        ("gpu-1", "serve"),
        *((node, "train") for node in NODES),
    ]


def test_a_node_without_hami_is_asked_too(scene):
    path = our_pod(scene.cluster, "gpu-4", "exporter", flavor="none")
    scene.fakes["gpu-4"] = scene.fakes["gpu-3"]
    scene.change()
    try:
        done = scene.run("containers", "--node", "gpu-4")
        assert (done.returncode, scene.asked()) == (0, ["hamiregion-gpu-4"]), done.stderr
        for job in ((), ("--job",)):
            done = scene.run("doctor", "--repair", "--node", "gpu-4", *job)
            assert (done.returncode, done.stdout) == (1, "")
            named = f"gpu-4: {NAMESPACE}/hamiregion-gpu-4"
            assert done.stderr == f"{named} mounts no regions (flavor: none)\n"
        assert scene.asked() == ["hamiregion-gpu-4"]
    finally:
        del scene.fakes["gpu-4"]
        scene.cluster.must("DELETE", f"{path}?gracePeriodSeconds=0")


def test_a_pod_that_a_tenant_has_labelled_as_ours_is_asked_nothing(scene):
    """It would answer in our name, and a Job would take its image."""
    template = pod_of(documents({}))["spec"]
    spec = {"hostPID": False, "volumes": [], "containers": []}
    for each in template["containers"]:
        spec["containers"] = [{**each, "name": "agent", "volumeMounts": []}]
    path = our_pod(scene.cluster, "gpu-1", "agent", name="zzz", namespace="sales", **spec)
    try:
        done = scene.run("containers", "--node", "gpu-1")
        assert (done.returncode, scene.asked()) == (0, ["hamiregion-gpu-1"]), done.stderr
    finally:
        scene.cluster.must("DELETE", f"{path}?gracePeriodSeconds=0")


# ---- all nodes -----------------------------------------------------------------------------------


def test_without_a_pod_all_nodes_are_one_table_in_their_order(scene):
    scene.change(gpu_1={"delay_s": 1.0})
    scene.fakes["gpu-2"].add("idle", pod="whole-gpu", namespace="research", region=False)
    done = scene.run("containers")
    scene.fakes["gpu-2"].remove(scene.fakes["gpu-2"].containers[1])
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n\n")
    heading, *rows = first.splitlines()
    assert heading.split()[:3] == ["NODE", "POD", "CONTAINER"]
    pods = [f"research/bert-{number}" for number in range(3)]
    assert [row.split()[:2] for row in rows] == [
        list(each) for each in zip(NODES, pods, strict=True)
    ]
    # Columns stay columns.
    assert {row.index("train") for row in rows} == {heading.index("CONTAINER")}
    assert [line.split()[0] for line in second.splitlines()] == ["NODE", "gpu-2"]
    assert scene.asked() == [f"hamiregion-{node}" for node in NODES]


def test_nodes_are_chosen_by_name_and_label(scene):
    scene.run("containers", "-l", "pool=a")
    assert scene.asked() == ["hamiregion-gpu-1", "hamiregion-gpu-2"]
    scene.change()
    done = scene.run("containers", "--node", "gpu-3")
    assert scene.asked() == ["hamiregion-gpu-3"]
    assert not done.stdout.startswith("NODE")


def test_a_node_that_is_late_or_cut_short_is_named_and_the_others_are_shown(scene):
    scene.change(gpu_1={"delay_s": 60}, gpu_2={"bytes": 40})
    done = scene.run("containers", "--json", deadline_s=8)
    assert done.returncode == 1
    (answer,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert answer["node"] == "gpu-3"
    assert answer["answer"]["containers"][0]["pod"] == "bert-2"
    lines = [line for line in done.stderr.splitlines() if not line.startswith("gpu-3")]
    assert lines == [
        "gpu-1: did not answer within 8 s",
        "gpu-2: the answer is incomplete",
    ]
    # Of documents only code 0 counts; of what the doctor says, problems that are left as well.
    scene.change(gpu_1={"code": 1}, gpu_2={"code": 3})
    done = scene.run("containers")
    assert done.returncode == 1
    assert "gpu-1: exit code 1" in done.stderr
    assert "gpu-2: exit code 3" in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NODE", "gpu-3"]
    done = scene.run("doctor")
    assert done.returncode == 1
    # For one container a verb may have failed, and not for the others.
    assert [done.stdout.count(f"== {node}\n") for node in NODES] == [1, 1, 1]
    scene.change(gpu_1={"code": 1}, gpu_2={"delay_s": 60}, gpu_3={"bytes": 0})
    done = scene.run("ps", deadline_s=8)
    assert (done.returncode, done.stdout) == (1, "")
    assert scene.shown() == []


def test_a_node_whose_pod_of_ours_does_not_run_is_named(scene):
    path = our_pod(scene.cluster, "gpu-4", "exporter", phase="Pending")
    try:
        done = scene.run("containers")
        assert done.returncode == 1
        assert "gpu-4: hamiregion/hamiregion-gpu-4 does not run" in done.stderr
        assert len(done.stdout.splitlines()) == 1 + len(NODES)
    finally:
        scene.cluster.must("DELETE", f"{path}?gracePeriodSeconds=0")


def test_top_keeps_one_stream_of_documents_per_node_and_names_those_that_are_late(scene):
    scene.change(gpu_2={"delay_s": 600})
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    seen = ""

    def pictures() -> list[str]:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(ours, 1 << 16).decode()
        return seen.split("\x1b[H\x1b[2J")[1:]

    with scene.start("top", stdout=theirs, stderr=theirs) as process:
        try:
            eventually(lambda: len(pictures()) > 2)
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    whole = pictures()[1]
    assert "gpu-2: does not answer" in whole
    assert {line.split()[0] for line in whole.splitlines() if "research/" in line} == {
        "gpu-1",
        "gpu-3",
    }
    # One stream for all pictures; each picture is drawn once.
    assert scene.asked() == [f"hamiregion-{node}" for node in NODES]
    assert len(scene.shown()) > 2
    assert "hamiregion-gpu-2" not in scene.shown()


@pytest.mark.parametrize("option", ["--watch", "--watch=1", "-i1"])
def test_several_nodes_are_not_watched(scene, option):
    done = scene.run("ps", option)
    assert (done.returncode, done.stdout, scene.asked()) == (2, "", [])
    assert "--watch shows one node" in done.stderr


def test_an_answer_moves_no_cursor(scene):
    scene.change(gpu_1={"out": "a\x1b[2Jb\n"})
    done = scene.run("doctor", "--node", "gpu-1", "--node", "gpu-2")
    assert done.stdout.startswith("== gpu-1\na?[2Jb\n")


def test_a_node_is_observed_as_a_document_that_the_program_shows_again(scene):
    done = scene.run("observe", "-n", "research", "bert-1")
    assert done.returncode == 0, done.stderr
    assert scene.asked() == ["hamiregion-gpu-2"]
    file = scene.directory / "node.json"
    file.write_text(done.stdout)
    shown = call("ps", "--from", str(file))
    assert shown.returncode == 0, shown.stderr
    assert "research/bert-1" in shown.stdout
    redacted = scene.run("observe", "--redact").stdout
    every = [json.loads(line) for line in redacted.splitlines()]
    assert [each["node"] for each in every] == list(NODES)
    assert not [each for each in every if "bert" in json.dumps(each["observation"])]
    # That is what the program shows again.
    assert [line.split()[0] for line in shown_again(scene.run("observe").stdout)] == [
        "NODE",
        *NODES,
    ]


def shown_again(lines: str) -> list[str]:
    command = [sys.executable, "-m", "libhamiregion", "containers", "--from", "-"]
    return finished(command, input=lines, check=True).stdout.splitlines()


def test_words_of_the_verb_on_stderr_are_passed_on_with_the_node(scene):
    done = scene.run("ps")
    assert done.returncode == 0
    notes = [line.split(": ")[:3] for line in done.stderr.splitlines()]
    assert notes == [["Note", node, "no figures of the driver"] for node in NODES]
    assert scene.run("doctor").stdout.count("== gpu-") == 3


def test_a_verb_that_writes_goes_to_no_second_node_by_itself(scene):
    done = scene.run("doctor", "--repair")
    assert done.returncode == 2
    assert "would write on 3 nodes: name a pod, --node or --all" in done.stderr
    for words in (("doctor", "--repair", "--all"), ("limits", "set", "bert-*", "--all")):
        done = scene.run(*words)
        assert "on gpu-3 the exporter runs" in done.stderr
    assert scene.asked() == []
    pool = ("-l", "pool=a")
    done = scene.run("limits", "set", "--all", "bert-*", "--memory", "7GiB", *pool)
    assert done.returncode == 0, done.stderr
    assert [limit_of(scene, node) for node in NODES] == [7 * GIB, 7 * GIB, 8 * GIB]
    assert "would write" not in scene.run("doctor", "--repair", "--dry-run").stderr


def test_where_only_the_exporter_runs_a_job_may_write_what_the_pod_may_not(scene):
    words = ("limits", "set", "-n", "research", "bert-2", "--memory", "5GiB")
    done = scene.run(*words)
    assert done.returncode == 1
    assert "add --job to run this once, in a Job on that node" in done.stderr
    done = scene.run(*words, "--job")
    assert done.returncode == 0, done.stderr
    # It reaches the same cluster.
    assert f"--kubeconfig={scene.directory / 'config'}" in done.stdout
    name = done.stdout.strip().rpartition("/")[2]
    job = scene.cluster.must("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}")
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeName"] == "gpu-3"
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    asked = ["limits", "set", "-n", "research", "bert-2", "--memory", "5GiB"]
    assert container["args"] == asked
    writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/usr/local/vgpu", "/run/hamiregion-locks", "/var/lib/hamiregion"}
    assert scene.asked() == []


# ---- the file ------------------------------------------------------------------------------------


def test_it_is_python_3_9_of_the_standard_library_and_short():
    tree = ast.parse(PLUGIN.read_text(), feature_version=(3, 9))
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= sys.stdlib_module_names
    docs = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    text = PLUGIN.read_text().splitlines()
    code = [
        line
        for number, line in enumerate(text, 1)
        if number not in docs and line.strip() and not line.strip().startswith("#")
    ]
    assert len(code) <= 250
    assert os.access(PLUGIN, os.X_OK)


def test_each_verb_is_one_of_the_program():
    for verb in runpy.run_path(str(PLUGIN))["VERBS"]:
        command: click.Command = hamiregion
        for word in verb.split():
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), word)
            assert found is not None, verb
            command = found
