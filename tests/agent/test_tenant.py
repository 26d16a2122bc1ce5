"""A hostile container beside an honest one: exporter and agent, as shipped, serve the honest one.

`TENANT_SEED=` plays a run again, `TENANT_MINUTES=` says for how long; a failure says with which
seed it was.
"""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.actors import Actor, MakeActor
from support.containers import UNSHARE, needs_namespaces
from support.exporter_process import ExporterProcess, environment
from support.exposition import parsed
from support.hostile_processes import MOST_MAPPINGS, deep_file, locked_process, mapping_storm
from support.node_scene import NodeScene
from support.own_cgroups import (
    cgroup_of_pod,
    chart_memory_limit_bytes,
    highest_resident_bytes,
    needs_cgroups,
)
from support.region_file import RegionFile
from support.scrapers import ask
from support.stress import scaled
from support.wait import eventually

from libhamiregion import Layout, create_region
from libhamiregion.units import MIB

OLDEST_S = 30.0
END_S = 15.0
GPU, TENANTS_GPU = (f"GPU-{digit * 8}-0000-0000-0000-000000000000" for digit in "01")
USED = "hami_vgpu_memory_used_bytes"
AGENT = (sys.executable, "-m", "libhamiregion", "agent")
# As the steering manifests run it; the exporter beside it is what the others run.
SHIPPED = ("--metrics", "--listen=127.0.0.1:0", "--feedback", "--repair")
TENANT = Path(__file__).parents[1] / "support/hostile_tenant.py"
CONTAINER_ID = "bad0" * 16


def address_in(events: Path) -> str:
    """Where an agent serves its metrics, by its log; empty before it does."""
    lines = [json.loads(line) for line in events.read_text().splitlines() if line.startswith("{")]
    found = [each["detail"]["url"] for each in lines if each["event"] == "listening"]
    return found[0] if found else ""


def serves(events: Path) -> bool:
    url = address_in(events)
    return bool(url) and ask(url, "/readyz").status == 200


class Clock:
    """Time, and how much of it this process was not let run: a busy machine is nobody's fault."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque(maxlen=1000)

    def nap(self, seconds: float = 0.25) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        now = time.monotonic()
        self._late.append((now, now - began - seconds))

    def late_s(self, since: float) -> float:
        return sum(late for at, late in self._late if at >= since)


class Honest:
    """A container of low priority whose use changes, and that another one blocks now and then."""

    def __init__(self, files: NodeScene, actor: MakeActor, clock: Clock) -> None:
        self._clock = clock
        spec: dict[str, Any] = {"uuids": [GPU], "memory_limits": ["8GiB"]}
        self.path = files.container(pod="honest", **spec).path
        self._urgent = files.container(pod="urgent", priority=0, **spec)
        self._region = RegionFile(self.path, Layout.V1_2)
        self._process: Actor = actor(self.path)
        self._process("attach")
        self._used = 0
        self._is_blocked_since: float | None = None
        self._is_free_since: float | None = time.monotonic()
        #: What was in use until when, oldest first.
        self._former: list[tuple[float, int]] = []

    def change(self, dice: random.Random) -> None:
        """Use more or less from now on."""
        wanted = dice.randrange(1, 64) * MIB
        # Before the store: from here on both are right.
        self._former.append((time.monotonic(), self._used))
        if wanted > self._used:
            self._process("slot.charge", 0, wanted - self._used)
        elif wanted < self._used:
            self._process("slot.release", 0, self._used - wanted)
        self._used = wanted

    def launch_elsewhere(self, *, on: bool) -> None:
        """Have the urgent container launch for ever, or no more."""
        self._urgent.put("recent_kernel", 1_000_000 if on else 0)
        now = time.monotonic()
        if on and self._is_blocked_since is None:
            self._is_blocked_since, self._is_free_since = now, None
        if not on and self._is_free_since is None:
            self._is_blocked_since, self._is_free_since = None, now

    def check_mark(self) -> None:
        """The mark of a blocked container is set in time, and given back in time."""
        mark, now = self._region.get("recent_kernel"), time.monotonic()
        if self._is_blocked_since is not None and self._is_old(self._is_blocked_since, now):
            assert mark == -1, "it was not blocked in time"
        if self._is_free_since is not None and self._is_old(self._is_free_since, now):
            assert mark >= 0, "its mark was not given back in time"

    def check_figure(self, text: bytes, asked_at: float) -> None:
        """What is exported is right, or was at most 30 s ago."""
        shown = parsed(text).series(USED, pod="honest")
        assert list(shown) != [], "the honest container is not exported"
        (value,) = shown.values()
        allowed = [self._used]
        allowed += [used for until, used in self._former if not self._is_old(until, asked_at)]
        assert value in allowed, f"{value} is exported of {allowed}"

    def _is_old(self, since: float, now: float) -> bool:
        return now - since > OLDEST_S + self._clock.late_s(since)


@contextlib.contextmanager
def tenant(seed: int, directory: Path, cgroup: Path, log: Path) -> Iterator[None]:
    """The program, in namespaces and a cgroup as a container has them."""
    join = f'echo $$ > {cgroup}/cgroup.procs && exec "$@"'
    command = [*UNSHARE, sys.executable, str(TENANT), str(seed), str(directory)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            ["sh", "-c", join, "sh", *command], stdin=subprocess.DEVNULL, stdout=stream
        )
    try:
        eventually(lambda: log.stat().st_size > 0 or process.poll() is not None)
        yield
        assert process.poll() is None, f"the tenant ended: {log.read_text()}"
    finally:
        process.kill()
        process.wait()


class Storms:
    """The moves that take a program of their own: at most one at a time, each for some seconds."""

    def __init__(self, directory: Path, cgroup: Path, dice: random.Random, region: Path) -> None:
        self._directory, self._cgroup, self._dice = directory, cgroup, dice
        self._region = region
        self._running = contextlib.ExitStack()
        self._until = 0.0
        self._count = 0

    def step(self) -> str | None:
        """End what is over, and begin something else now and then; its name."""
        if time.monotonic() < self._until:
            return None
        self._running.close()
        self._until = time.monotonic() + self._dice.uniform(2, 8)
        self._count += 1
        own = self._directory / f"storm-{self._count}"
        own.mkdir()
        kind = self._dice.choice(["shared", "forked", "pids", "locked", "nothing"])
        if kind == "locked":
            self._running.enter_context(locked_process(own / "fuse"))
        elif kind != "nothing":
            how: dict[str, Any] = {
                "shared": {"processes": 200, "lifetime_ms": 2000, "mappings": MOST_MAPPINGS},
                "forked": {"processes": 8, "lifetime_ms": 500, "mappings": 9_500},
                "pids": {"processes": 200, "lifetime_ms": 300, "mappings": 10},
            }[kind]
            if kind == "forked":
                how["file"] = deep_file(own, 3_400)
            name = "forked" if kind == "pids" else kind
            self._running.enter_context(mapping_storm(own, self._cgroup, name, **how))
        return kind

    def close(self) -> None:
        self._running.close()


@pytest.mark.slow
@needs_cgroups
@needs_namespaces
@pytest.mark.timeout(3600)
def test_a_hostile_tenant_harms_only_itself(tmp_path, actor):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    seed = int(os.environ.get("TENANT_SEED") or random.SystemRandom().randrange(1 << 32))
    minutes = os.environ.get("TENANT_MINUTES")
    lasts_s = float(minutes) * 60 if minutes else scaled(1800.0, 60.0)
    dice, clock = random.Random(seed), Clock()
    files = NodeScene(tmp_path)
    honest = Honest(files, actor, clock)
    uid = "0b5c1e64-27a1-4a1c-8a3c-7ab0d3adbad0"
    own = files.container(pod="tenant", pod_uid=uid, region=False).directory
    own.chmod(0o777)
    moves, events = tmp_path / "moves", tmp_path / "events"
    where = ("--root", str(files.root), "--pod-logs", str(files.pod_logs))
    create_region(own / "usage.cache", uuids=[TENANTS_GPU], memory_limits=["4GiB"])
    storms_made: list[str] = []

    def story() -> str:
        return (
            f"TENANT_SEED={seed}; storms {storms_made[-5:]}; moves"
            f" {moves.read_text().split()[-10:] if moves.exists() else []}; the agent:"
            f" {events.read_text()[-2000:]}"
        )

    with contextlib.ExitStack() as stack:
        exporter = stack.enter_context(ExporterProcess(*where))
        with events.open("wb") as log:
            agent = subprocess.Popen(
                [*AGENT, *where, *SHIPPED, "--json"],
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        stack.callback(lambda: (agent.kill(), agent.wait()))
        exporter.wait_until_ready()
        eventually(lambda: serves(events))
        urls = itertools.cycle((exporter.url, address_in(events)))
        cgroup = stack.enter_context(cgroup_of_pod(uid, CONTAINER_ID))
        storms = Storms(tmp_path, cgroup, dice, own / "usage.cache")
        stack.callback(storms.close)
        daemons = {"exporter": exporter.process, "agent": agent}
        try:
            with tenant(seed, own, cgroup, moves):
                end = time.monotonic() + lasts_s
                phase_end, on = 0.0, False
                while time.monotonic() < end:
                    clock.nap()
                    if (kind := storms.step()) is not None:
                        storms_made.append(kind)
                    if dice.random() < 0.1:
                        honest.change(dice)
                    if time.monotonic() > phase_end:
                        on = not on
                        honest.launch_elsewhere(on=on)
                        phase_end = time.monotonic() + dice.uniform(5, 1.5 * OLDEST_S)
                    asked_at = time.monotonic()
                    reply = ask(next(urls), "/metrics")
                    assert reply.status == 200, reply.text
                    honest.check_figure(reply.body, asked_at)
                    honest.check_mark()
                    for name, process in daemons.items():
                        assert process.poll() is None, f"the {name} ended"
                        assert highest_resident_bytes(process.pid) < chart_memory_limit_bytes(), (
                            name
                        )
                highest = {
                    name: highest_resident_bytes(each.pid) // MIB for name, each in daemons.items()
                }
                made = len(moves.read_text().split())
                # For `pytest -s`; few moves would prove little.
                print(f"seed {seed}: {made} moves, MiB at the highest: {highest}")
                assert made > lasts_s / 10
                # Under attack too, they end when they are told to.
                for name, process in daemons.items():
                    asked_at = time.monotonic()
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(8 * END_S) == 0, name
                    took_s = time.monotonic() - asked_at
                    assert took_s < END_S + clock.late_s(asked_at), f"{name}: {took_s:.0f} s"
        except BaseException as error:
            error.add_note(story()) if hasattr(error, "add_note") else print(story())
            raise
