"""Compare what two trees say about the same node: metrics, --json of each verb, CPU of a minute.

    python tools/compare_trees.py OLD NEW [--only layouts,dead] [--cpu]

OLD and NEW are checkouts; `make` sets up an environment in each. The old tree's library makes the
regions and the processes, and both command lines read them at the same time. A difference is a line
`metric NAME`, `json VERB.KEY` or `verb NAME`; those that a line `WHAT: why` of
allowed_differences.txt matches (with * and ?) are counted, the others are listed and the exit
status is 1. Run it as root in the machine's own PID namespace: elsewhere the death of a process of
the old library is not proved. Both trees see all processes of the machine: run it on a quiet one.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOWED = Path(__file__).with_name("allowed_differences.txt")
NODE_VERBS = ("ps", "containers", "top", "doctor")
FILE_VERBS = ("show",)
# What differs between two readings of the same state.
VOLATILE_KEY = re.compile(
    r"(_s|_at|_ns|age|time|version|schema|pid_namespace|taken|watch\w*|interval)$"
)
VOLATILE_METRIC = re.compile(
    r"(_seconds(_total|_sum|_count|_bucket)?|_timestamp\w*|_created|_cpu\w*)$"
    r"|^(process_|python_|hamiregion_scrape|hamiregion_build)"
)
IDENTITY = (
    "path",
    "uuid",
    "pod_uid",
    "pod",
    "container",
    "name",
    "kind",
    "host_pid",
    "pid",
)
GIB = 1 << 30
MIB = 1 << 20


# ---- scenes: run with the old tree's Python, for as long as its standard input is open ----


class Builder:
    """Makes containers with the old tree's library; its processes are forked from this one."""

    def __init__(self, directory: Path, old: Path) -> None:
        import libhamiregion as hami
        from libhamiregion.testing import FakeNode

        self.hami = hami
        self.directory = directory
        self.node = FakeNode(directory / "node")
        self.roots = [self.node.root]
        self.children: list[int] = []
        self.lines: list[str] = []
        sys.path.insert(0, str(old / "tests"))
        from fake_nvml.driver import build
        from fake_nvml.scenes import CARD, SECOND

        (directory / "nvml").mkdir()
        self.library = build(directory / "nvml")
        self.cards = [CARD, SECOND]
        self.uuids = [card.split()[2] for card in self.cards]

    def container(self, pod: str, name: str = "main", **spec: Any) -> Path:
        """Add a container with a region of two devices; return the path of the region."""
        made = self.node.add(name, pod=pod, namespace="research", region=False)
        path = made.directory / "usage.cache"
        limits = {"memory_limits": ("8GiB", "4GiB"), "sm_limits": (50,), "uuids": self.uuids}
        self.hami.create_region(path, **{**limits, **spec})
        return path

    def process(self, path: Path, use: int = GIB) -> int:
        """Fork a process that attaches to a region, charges memory, and stays."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            sys.excepthook = lambda *found: (sys.__excepthook__(*found), os._exit(1))
            region = self.hami.open_region(path, writable=True)
            slot = region.attach()
            slot.charge(0, use)
            slot.charge(1, use // 2)
            os.write(write, b".")
            os.close(write)
            while True:
                signal.pause()
        os.close(write)
        assert os.read(read, 1), f"a process of {path} ended"
        os.close(read)
        self.children.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.children.remove(pid)

    def put(self, path: Path, field: str, value: int, size: int, slot: int | None = None) -> None:
        with self.hami.open_region(path) as region:
            offsets = region.layout.offsets
        at = offsets[field]
        if slot is not None:
            at += offsets["procs"] + slot * offsets["slot_stride"]
        with path.open("r+b") as file:
            file.seek(at)
            file.write(value.to_bytes(size, "little"))

    def end(self) -> None:
        for pid in list(self.children):
            self.kill(pid)
        self.node.close()


def scene_alive(make: Builder) -> None:
    path = make.container("alive-0", "train")
    pid = make.process(path)
    make.process(path, 2 * GIB)
    make.lines += [f"process 0 compute {pid} {1300 * MIB}", f"sample 0 {pid} 100 43 22 1 2"]


def scene_dead(make: Builder) -> None:
    path = make.container("dead-0")
    make.process(path)
    make.kill(make.process(path, 2 * GIB))


def scene_unmanaged(make: Builder) -> None:
    """A process of no container on the GPU."""
    sleeper = subprocess.Popen(["sleep", "3600"])
    make.children.append(sleeper.pid)
    make.lines.append(f"process 1 graphics {sleeper.pid} {20 * MIB}")


def scene_over_limit(make: Builder) -> None:
    path = make.container("over-0")
    make.process(path, 3 * GIB)
    make.put(path, "limit", GIB, 8)


def scene_stuck_lock(make: Builder) -> None:
    """A lock as libvgpu leaves it: the plain pid of a dead process, and the semaphore at 0."""
    path = make.container("stuck-0")
    pid = make.process(path)
    make.kill(pid)
    make.put(path, "owner_pid", pid, 8)
    make.put(path, "sem", 0, 4)


def scene_torn_slot(make: Builder) -> None:
    path = make.container("torn-0")
    make.process(path)
    make.put(path, "slot_seqlock", 7, 8, slot=0)


def scene_layouts(make: Builder) -> None:
    for layout in make.hami.Layout:
        make.container(f"layout-{layout.value.replace('.', '-')}", layout=layout)


def scene_mig(make: Builder) -> None:
    make.container("mig-0", uuids=["MIG-aaaaaaaa-0000-0000-0000-000000000000"])


def scene_missing(make: Builder) -> None:
    make.node.add("main", pod="missing-0", namespace="research", region=False)
    broken = make.container("broken-0")
    os.truncate(broken, 5)


def scene_init_container(make: Builder) -> None:
    """Two containers of one pod, the first of which has ended."""
    made = make.node.add("init", pod="init-0", namespace="research", region=False)
    for name in ("init", "main"):
        directory = made.directory.with_name(f"{made.pod_uid}_{name}")
        directory.mkdir(exist_ok=True)
        what = {"uuids": make.uuids[:1], "memory_limits": ["8GiB"]}
        make.hami.create_region(directory / "usage.cache", **what)
    make.process(directory / "usage.cache")


def scene_claim(make: Builder) -> None:
    """A region of a resource claim, with a process."""
    root = make.directory / "claims"
    directory = root / "6f1c0d8e-9f2b-4f0a-8a51-0c5f6d1e2a3b"
    directory.mkdir(parents=True)
    make.hami.create_region(directory / "usage.cache", uuids=make.uuids)
    make.process(directory / "usage.cache")
    make.roots.append(root)


def scene_many(make: Builder) -> None:
    """256 containers with two devices and four processes."""
    for number in range(256):
        path = make.container(f"many-{number}")
        for _ in range(4):
            make.process(path, 64 * MIB)


SCENES = {
    name.removeprefix("scene_"): build
    for name, build in list(globals().items())
    if name.startswith("scene_")
}


def build_scene(name: str, directory: Path, old: Path) -> None:
    """Make a scene, say where it is, and keep it until standard input ends."""
    make = Builder(directory, old)
    try:
        SCENES[name](make)
        text = "\n".join(["driver 570.0-fake", *make.cards, *make.lines, ""])
        (directory / "nvml-state").write_text(text)
        regions = [str(each) for root in make.roots for each in sorted(root.glob("*/usage.cache"))]
        place = {
            "roots": [str(root) for root in make.roots],
            "pod_logs": str(make.node.pod_logs),
            "library": str(make.library),
            "regions": regions[:8],
        }
        print(json.dumps(place), flush=True)
        sys.stdin.read()
    finally:
        make.end()


# ---- the two trees ----


class Tree:
    """A checkout, and its command line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / ".venv/bin/python"
        if not self.python.exists():
            subprocess.run(["make", ".venv/.installed"], cwd=path, check=True)

    def command(self, *words: str) -> list[str]:
        return [str(self.python), "-m", "libhamiregion", *words]

    def run(self, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def json_of(tree: Tree, env: dict[str, str], *words: str) -> Any:
    """What a verb answers with --json; None if the tree has no such verb or option."""
    answer = tree.run(env, *words, "--json")
    if answer.returncode == 2 and not answer.stdout:
        return None
    try:
        return {"exit": answer.returncode, **json.loads(answer.stdout)}
    except ValueError:
        return {"exit": answer.returncode, "said": answer.stderr.strip()}


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of an answer; rows of lists go by what identifies them."""
    if isinstance(value, dict):
        for name, each in value.items():
            if not VOLATILE_KEY.search(name):
                yield from flat(each, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            label = str(number)
            if isinstance(each, dict):
                label = ",".join(str(each[name]) for name in IDENTITY if each.get(name)) or label
            yield from flat(each, f"{key}[{label}]")
    else:
        yield key, value


def series_of(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            if not VOLATILE_METRIC.search(name):
                labels = sorted(re.findall(r'\w+="(?:[^"\\]|\\.)*"', series))
                found[name + "{" + ",".join(labels) + "}"] = str(float(value))
    return found


class Differences:
    """What was found, by its general name; an example is kept of each."""

    def __init__(self) -> None:
        lines = ALLOWED.read_text().splitlines() if ALLOWED.exists() else []
        self.allowed = [
            line.partition(": ")[0] for line in lines if line and not line.startswith("#")
        ]
        self.count: collections.Counter[str] = collections.Counter()
        self.example: dict[str, str] = {}

    def add(self, what: str, example: str) -> None:
        self.count[what] += 1
        self.example.setdefault(what, example)

    def compare(self, kind: str, old: dict[str, Any], new: dict[str, Any], scene: str) -> None:
        for key in sorted({*old, *new}):
            before, after = old.get(key, "absent"), new.get(key, "absent")
            if before != after:
                general = re.sub(r"\[.*?\]|\{.*\}", "", key)
                self.add(f"{kind}{general}", f"{scene}: {key}: {before!r} -> {after!r}"[:400])

    def report(self) -> int:
        wanted = [
            what for what in self.count if any(fnmatch.fnmatch(what, each) for each in self.allowed)
        ]
        for what, count in sorted(self.count.items()):
            if what not in wanted:
                print(f"{what} ({count})\n    {self.example[what]}")
        unwanted = len(self.count) - len(wanted)
        print(f"{unwanted} differences, and {len(wanted)} that are allowed")
        return 1 if unwanted else 0


def compare_scene(scene: str, old: Tree, new: Tree, found: Differences, *, cpu: bool) -> None:
    with tempfile.TemporaryDirectory(prefix=f"compare-{scene}-") as name:
        builder = subprocess.Popen(
            [str(old.python), __file__, "--build", scene, name, str(old.path)],
            cwd=old.path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert builder.stdin is not None
        assert builder.stdout is not None
        try:
            line = builder.stdout.readline()
            if not line:
                raise SystemExit(f"scene {scene} could not be made")
            place = json.loads(line)
            env = {
                **os.environ,
                "FAKE_NVML_STATE": f"{name}/nvml-state",
                "LD_LIBRARY_PATH": str(Path(place["library"]).parent),
                "HAMIREGION_LOCKS": name,
            }
            options = ["--pod-logs", place["pod_logs"]]
            options += [f"--root={root}" for root in place["roots"]]
            for verb in (*NODE_VERBS, *FILE_VERBS):
                files = place["regions"] if verb in FILE_VERBS else [None]
                for file in files:
                    words = [verb, *([file] if file else options)]
                    both = [json_of(tree, env, *words) for tree in (old, new)]
                    if (both[0] is None) != (both[1] is None):
                        found.add(f"verb {verb}", f"{scene}: only one of the trees has it")
                    elif both[0] is not None:
                        found.compare(
                            f"json {verb}.", dict(flat(both[0])), dict(flat(both[1])), scene
                        )
            texts = [tree.run(env, "exporter", "--once", *options).stdout for tree in (old, new)]
            found.compare("metric ", series_of(texts[0]), series_of(texts[1]), scene)
            if cpu:
                for words in (
                    ("exporter", *options),
                    ("agent", "--feedback", "--repair", "--assume-alone", *options),
                ):
                    figures = [cpu_of_a_minute(tree, env, *words) for tree in (old, new, new, old)]
                    before, after = figures[0] + figures[3], figures[1] + figures[2]
                    print(
                        f"{scene}: {words[0]}: {before / 2:.2f} -> {after / 2:.2f} CPU s a minute"
                        f" ({after / before:.2f} times; each twice, in turns)"
                    )
        finally:
            builder.stdin.close()
            builder.wait(120)


def cpu_of_a_minute(tree: Tree, env: dict[str, str], *words: str) -> float:
    """CPU seconds of a service's minute, its start left out; an exporter is scraped every 15 s."""
    extra = ["--listen", "127.0.0.1:0"] if words[0] == "exporter" else []
    with tempfile.NamedTemporaryFile("r") as log, Path(log.name).open("ab") as writer:
        process = subprocess.Popen(
            tree.command(*words, *extra),
            cwd=tree.path,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=writer,
        )
        time.sleep(30)
        said = log.read()
        began = _cpu_s(process.pid)
        for _ in range(4):
            if extra:
                address = re.search(r"listening on ([^\s\"]+)", said)[1]
                urllib.request.urlopen(address.rstrip("/") + "/metrics").read()
            time.sleep(15)
        used = _cpu_s(process.pid) - began
        if process.poll() is not None:
            raise SystemExit(f"{words[0]} of {tree.path} has ended: {said}")
        process.terminate()
        process.wait(60)
        return used


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Compare the scenes asked for; 1 if there is a difference that is not allowed."""
    if sys.argv[1:2] == ["--build"]:
        build_scene(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default=",".join(SCENES), help="scenes, separated by commas")
    parser.add_argument("--cpu", action="store_true", help="also CPU, twelve minutes a scene")
    asked = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    old, new = Tree(asked.old.resolve()), Tree(asked.new.resolve())
    found = Differences()
    for scene in asked.only.split(","):
        compare_scene(scene, old, new, found, cpu=asked.cpu)
    return found.report()


if __name__ == "__main__":
    sys.exit(main())
