"""The examples do what they say, run as programs."""

import contextlib
import io
import itertools
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from support.exposition import parsed
from support.node_scene import NodeScene
from support.process import finished
from support.region_file import RegionFile
from support.run_scene import RunScene
from support.wait import PATIENCE_S

from libhamiregion import create_region, open_region
from libhamiregion.units import GIB

# Above every pid that Linux gives.
DEAD_PID = 2**22 + 7
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_an_exporter_of_ones_own_serves_the_regions_beside_its_own_metrics(files):
    golden = files.golden("1.2-many-processes")
    command = [sys.executable, str(EXAMPLES / "own_exporter.py")]
    with subprocess.Popen(
        [*command, str(files.root), "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            address = process.stdout.readline().strip()
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                found = parsed(answer.read())
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert found.value("node_jobs_load") >= 0
    # Others on this machine may have regions of their own.
    pod_uid = golden.path.parent.name.partition("_")[0]
    used = sum(found.series("hami_vgpu_memory_used_bytes", pod=pod_uid).values())
    assert used == sum(golden.expected["device_used"])
    assert found.value("hamiregion_containers", region="present") >= 1


def add_region(files: NodeScene, name: str, limit: str) -> RegionFile:
    return files.container(name, memory_limits=[limit], uuids=["GPU-1"])


def run_example(
    name: str, *arguments: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an example's text in this process: all of it but the start of an interpreter."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(EXAMPLES / name), *map(str, arguments)])
        for key, value in (env or {}).items():
            patch.setenv(key, value)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                runpy.run_path(str(EXAMPLES / name), run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if isinstance(ended.code, str):
                err.write(f"{ended.code}\n")
    return subprocess.CompletedProcess([name], code, out.getvalue(), err.getvalue())


def start_example(
    name: str, *arguments: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run an example as a program, to its end."""
    return finished(
        [sys.executable, EXAMPLES / name, *map(str, arguments)], env={**os.environ, **(env or {})}
    )


def example(name: str, *arguments: object, env: dict[str, str] | None = None) -> str:
    """What an example prints, run to its end."""
    done = run_example(name, *arguments, env=env)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


class Night:
    """A node for the job of the night: containers of 8 GiB that use 1 GiB and launch nothing."""

    def __init__(self, directory: Path) -> None:
        self.files = NodeScene(directory)
        self.state = directory / "night"

    def idle(self, name: str) -> RegionFile:
        region = add_region(self.files, name, "8GiB")
        region.put("last_kernel_time", 1)
        region.add_process(7, {0: GIB})
        return region

    def run(self, verb: str) -> subprocess.CompletedProcess[str]:
        return run_example("nightly_shrink.py", verb, self.state, self.files.root)

    def undo_plans(self) -> int:
        return len([*self.state.glob("undo-*.yaml")])


@pytest.fixture
def night(tmp_path) -> Night:
    return Night(tmp_path)


def limits(*regions: RegionFile) -> list[int]:
    return [each.get("limit") // GIB for each in regions]


def test_idle_containers_are_shrunk_at_night_and_restored_unless_others_changed_them(night):
    idle, touched, busy = (night.idle(name) for name in "abc")
    busy.put("last_kernel_time", int(time.time()))
    done = night.run("shrink")
    assert (done.returncode, done.stdout.count("8 GiB -> 1 GiB")) == (0, 2)
    assert limits(idle, touched, busy) == [1, 1, 8]
    touched.put("limit", 3 * GIB)
    assert night.run("restore").returncode == 0
    assert limits(idle, touched, busy) == [8, 3, 8]
    assert night.undo_plans() == 0


def test_a_night_job_that_runs_twice_is_undone_by_one_restore(night):
    region = night.idle("a")
    for used in (3, 2):
        for field in ("slot_used.data", "slot_used.total"):
            region.put(field, used * GIB)
        assert night.run("shrink").returncode == 0
        assert night.run("shrink").stdout == ""
        assert limits(region) == [used]
    assert night.undo_plans() == 2
    for _ in range(2):
        assert night.run("restore").returncode == 0
        assert limits(region) == [8]
    assert night.undo_plans() == 0


def test_a_container_that_cannot_be_edited_costs_the_others_no_night(night):
    first, cut, last = (night.idle(name) for name in "abc")
    whole = cut.content()
    assert night.run("shrink").returncode == 0
    cut.resize(100_000)
    # This morning, the next night, and the morning after.
    for verb, shown in (("restore", 8), ("shrink", 1), ("restore", 8)):
        done = night.run(verb)
        assert limits(first, last) == [shown, shown]
        assert done.returncode == int(verb == "restore")
    assert str(cut.path.parent) in done.stderr
    cut.path.write_bytes(whole)
    cut.put("limit", GIB)
    assert night.run("restore").returncode == 0
    assert limits(first, cut, last) == [8, 8, 8]
    assert night.undo_plans() == 0


def test_a_namespace_is_scaled_after_a_dry_run_and_undone_but_for_what_others_changed(
    tmp_path, files
):
    ours, touched, other = (
        files.container(pod=pod, memory_limits=["10GiB"], uuids=["GPU-1"])
        for pod in ("job-1", "job-2", "other")
    )
    saved = tmp_path / "changes.json"
    where = ("--root", files.root, "--pod-logs", files.pod_logs)
    scale = ("scale.py", "80%", *where, "--pod", "job-*")

    said = example(*scale, "--dry-run")
    assert said.count("device 0: memory limit 10 GiB -> 8 GiB") == 2
    assert "2 changes" in said
    assert [each.get("limit") for each in (ours, touched, other)] == [10 * GIB] * 3
    example(*scale, "--save", saved)
    assert [each.get("limit") for each in (ours, touched, other)] == [8 * GIB, 8 * GIB, 10 * GIB]
    touched.put("limit", 3 * GIB)
    said = example("scale.py", "--undo", saved)
    assert (said.count("undone: "), said.count("conflict: ")) == (1, 1)
    assert [each.get("limit") for each in (ours, touched, other)] == [10 * GIB, 3 * GIB, 10 * GIB]
    nameless = run_example(*scale[:4], "--pod-logs", tmp_path, "--namespace", "research")
    assert (nameless.returncode, "name of the pod of" in nameless.stderr) == (1, True)
    assert [each.get("limit") for each in (ours, touched, other)] == [10 * GIB, 3 * GIB, 10 * GIB]


# Each program with the words by which it can be tried on a node, and how it ends on a wrong root.
TRIED = {
    "batch_size.py": ("--bytes-per-sample", "3MiB"),
    "lock_watchdog.py": ("ROOT",),
    "nightly_shrink.py": ("shrink", "STATE", "ROOT"),
    "read_region.py": ("FILE",),
    "scale.py": ("80%", "--root", "ROOT", "--dry-run"),
}
#: These run until they are ended, and have tests of their own.
SERVERS = {"fastapi_app.py", "own_exporter.py"}


def test_every_example_is_run_twice_or_serves():
    assert {path.name for path in EXAMPLES.glob("*.py")} == TRIED.keys() | SERVERS


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", TRIED)
def test_an_example_runs_twice_and_says_so_where_there_is_nothing(name, tmp_path, files):
    region = add_region(files, "train", "6GiB")
    wrong = tmp_path / "nowhere"
    numbers = itertools.count()

    def run(
        root: Path, file: Path, how: Callable[..., subprocess.CompletedProcess[str]] = run_example
    ) -> subprocess.CompletedProcess[str]:
        places = {"ROOT": root, "FILE": file, "STATE": tmp_path / f"state-{next(numbers)}"}
        words = [places.get(word, word) for word in TRIED[name]]
        return how(name, *words, env={"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(file)})

    first, second = (run(files.root, region.path, how) for how in (start_example, run_example))
    assert (first.returncode, first.stderr) == (second.returncode, second.stderr) == (0, "")
    if name != "read_region.py" or '"settled": true' in first.stdout:
        assert first.stdout == second.stdout
    there_is_none = run(wrong, wrong, start_example)
    if name == "batch_size.py":
        # A program without a region has all of its GPU: that is what it says.
        assert there_is_none.stdout == "unlimited\n"
    else:
        assert there_is_none.returncode != 0
        assert "nowhere" in there_is_none.stderr


@pytest.mark.root
def test_the_watchdog_frees_the_lock_of_the_dead_and_no_other(files):
    wedged, free = (add_region(files, name, "8GiB") for name in "ab")
    wedged.put("owner_pid", DEAD_PID)
    wedged.put("sem", 0)
    said = example("lock_watchdog.py", files.root)
    assert said == f"{wedged.path}: freed\n"
    assert wedged.get("sem") & 0xFFFFFFFF == 1
    assert example("lock_watchdog.py", files.root) == ""
    with open_region(free.path) as region:
        assert not region.lock_state().held


def test_a_batch_fits_what_is_left_of_the_programs_own_budget(tmp_path, files):
    own = add_region(files, "main", "6GiB")
    own.add_process(7, {0: GIB})
    options = ("--bytes-per-sample", "3MiB", "--reserve", "2GiB")
    named = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(own.path)}
    assert int(example("batch_size.py", *options, env=named)) == (3 * GIB) // (3 << 20)
    none = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "none.cache")}
    assert example("batch_size.py", *options, env=none) == "unlimited\n"


@contextlib.contextmanager
def fastapi_application(root: Path) -> Iterator[str]:
    """The example, served; the address."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES, "fastapi_app:app"]
    with subprocess.Popen(
        [*command, "--port", "0", "--no-access-log"],
        env={**os.environ, "HAMI_ROOT": str(root)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            yield next(
                found[0] for line in process.stderr if (found := re.search(r"http://[\w.:]+", line))
            )
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)


def fetched(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"{address}/{path}", timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


@pytest.mark.slow
def test_a_fastapi_application_serves_metrics_and_containers(files):
    add_region(files, "train", "6GiB")
    (files.container("broken", region=False).directory / "a.cache").write_bytes(b"no region")
    with fastapi_application(files.root) as address:
        containers = {
            each["container"]: each for each in json.loads(fetched(address, "containers"))
        }
        found = parsed(fetched(address, "metrics"))
    assert containers["train"]["layout"] == "1.2"
    assert "error" in containers["broken"]
    assert set(found.series("hami_vgpu_memory_limit_bytes").values()) == {6 * GIB}


# ---- The notebook --------------------------------------------------------------------------------

# As a kernel has it: cells share their names, and what a cell ends with is shown. Jupyter's own
# (nbclient, ipykernel and pyzmq, some thirty packages) would prove no more of the cells.
KERNEL = """
import ast, json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
            html = getattr(value, "_repr_html_", lambda: None)()
            print(json.dumps({"id": cell["id"], "shown": html or repr(value)}))
"""


def run_notebook(path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "HOOK_PATH"}
    return finished(
        [sys.executable, "-c", KERNEL, str(path)],
        env={**environment, **more},
        timeout=4 * PATIENCE_S,
    )


def notebook(path: Path, **more: str) -> list[str]:
    """What each cell shows that shows something."""
    done = run_notebook(path, **more)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["shown"] for line in done.stdout.splitlines()]


def test_the_notebook_ends_with_the_error_of_a_wrong_root(tmp_path):
    done = run_notebook(EXAMPLES / "containers.ipynb", HOOK_PATH=str(tmp_path / "nowhere"))
    assert done.returncode != 0
    assert "nowhere" in done.stderr


@pytest.mark.slow
def test_the_notebook_shows_a_fake_node_or_the_one_it_is_told(files):
    path = EXAMPLES / "containers.ipynb"
    document = json.loads(path.read_text())
    assert (document["nbformat"], len({each["id"] for each in document["cells"]})) == (4, 10)
    assert all(not each.get("outputs") for each in document["cells"]), "clear it before a commit"
    table, sums, chart, history = notebook(path)
    assert "bert-0" in table
    assert "whisper-0" in table
    assert "inference" in sums
    unlimited, limited = re.findall(r"<th>(?:inference|research)</th>(.*?)</tr>", sums, re.DOTALL)
    assert (unlimited.count("NA"), limited.count("NA")) == (2, 0), "a limit and what is free"
    assert "unlimited" in chart
    assert history.count("GiB") >= 30
    add_region(files, "train", "6GiB")
    told = notebook(path, HOOK_PATH=str(files.root.parent))
    assert "6442450944" in told[0]


# ---- Programs within a budget --------------------------------------------------------------------


def command_on_path(directory: Path, runs: RunScene) -> dict[str, str]:
    """An environment in which a shell finds `hamiregion`, `python` and the fake driver."""
    command = directory / "bin" / "hamiregion"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m libhamiregion "$@"\n')
    command.chmod(0o755)
    (command.parent / "python").symlink_to(sys.executable)
    path = f"{command.parent}:{os.environ['PATH']}"
    return runs.environment(PATH=path, LD_LIBRARY_PATH=str(runs.driver))


@pytest.mark.slow
def test_two_programs_share_a_gpu_and_who_is_left_gets_all(runs, tmp_path):
    limits = 'hamiregion limits get "$CUDA_DEVICE_MEMORY_SHARED_CACHE" --json'
    wait_for_all = f"until {limits} | grep -q null; do sleep 0.1; done; echo all; exit 7"
    done = finished(
        ["sh", str(EXAMPLES / "two_programs.sh"), limits, wait_for_all],
        env=command_on_path(tmp_path, runs),
        timeout=4 * PATIENCE_S,
    )
    assert done.returncode == 7, done.stderr
    assert str(6 * GIB) in done.stdout
    assert "all\n" in done.stdout
    assert len((EXAMPLES / "two_programs.sh").read_text().splitlines()) < 60


def test_the_programs_of_the_page_about_budgets_run(runs, tmp_path, monkeypatch):
    """The other pages' run in test_documentation.py, without a driver."""
    page = (EXAMPLES.parent / "docs" / "a-gpu-budget.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert programs
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os; print(os.environ['LD_LIBRARY_PATH'])")
    for program in programs:
        done = finished(
            [sys.executable, "-c", program],
            env=command_on_path(tmp_path, runs),
            timeout=4 * PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(str(runs.base)) >= 2


# ---- A Docker host -------------------------------------------------------------------------------


@pytest.mark.root
def test_the_exporter_of_the_compose_file_finds_a_container_of_docker(start, tmp_path):
    """Its region lies where plain Docker leaves it: in no directory of HAMi's."""
    service = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())["services"]["hamiregion"]
    recipe = (EXAMPLES.parent / "docs" / "recipes.md").read_text()
    command = [word for word in service["command"] if not word.startswith("--listen")]
    (docker,) = re.findall(r"^    docker run (?:.*\\\n)+.*$", recipe, re.MULTILINE)
    shown = docker.replace("\\\n", " ")
    assert " ".join([service["image"], *service["command"]]) in shown
    added = re.findall(r"--cap-add (\w+)", shown)
    assert (added, service["volumes"][0] in shown) == (service["cap_add"], True)

    path = tmp_path / "cudevshr.cache"
    create_region(path, memory_limits=["3GiB"], uuids=["GPU-1"])
    start().tell("attach", path)
    (tmp_path / "none").mkdir()
    held = ",".join(f"+{name.lower()}" for name in added)
    rights = [f"--bounding-set=-all,{held}", f"--inh-caps=-all,{held}", "--no-new-privs"]
    words = [sys.executable, "-m", "libhamiregion", *command, "--once"]
    done = subprocess.run(
        ["setpriv", *rights, *words, "--root", str(tmp_path / "none")],
        capture_output=True,
        check=False,
        timeout=4 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    limits = parsed(done.stdout).series("hami_vgpu_memory_limit_bytes")
    assert 3 * GIB in limits.values()
