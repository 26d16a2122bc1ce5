"""`hamiregion agent` as a process: the command itself, at short intervals."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from support.agent_tasks import MONITOR
from support.answers import check_answer
from support.command_line import call
from support.node_scene import NodeScene
from support.process import Program, finished
from support.region_file import RegionFile
from support.wait import PATIENCE_S, eventually

# Its intervals are no options, and HAMi's monitor is called as in these tests.
PROGRAM = f"""
import faulthandler, os, signal
from libhamiregion.agent import UsageSync, Feedback, PlanKeeper, loop
from libhamiregion.cli.app import main
from libhamiregion.observation import processes
for each in (UsageSync, Feedback, PlanKeeper):
    each.interval_s = 0.02
loop.Task.interval_s = float(os.environ.get("TEST_INTERVAL_S", "10"))
loop.STUCK_AFTER_S = float(os.environ.get("TEST_STUCK_AFTER_S", "60"))
loop._LAST_PASS_S = float(os.environ.get("TEST_LAST_PASS_S", "15"))
processes.MONITOR_NAMES = frozenset({{{MONITOR!r}}})
faulthandler.register(signal.SIGUSR1)
main()
"""
COMMAND = (sys.executable, "-c", PROGRAM, "agent")


class Agent(Program):
    """A running agent; its events are read when they are asked for."""

    def __init__(
        self,
        root: Path | None,
        *words: str,
        inside: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        place = () if root is None else ("--root", str(root))
        # Some environments are made before a test has its own locks.
        own = {**(env or {}), "HAMIREGION_LOCKS": os.environ["HAMIREGION_LOCKS"]}
        super().__init__(*inside, *COMMAND, *place, "--json", *words, env=own)

    @property
    def said(self) -> str:
        """What stands in the log besides events."""
        lines = self.log.splitlines()
        return "\n".join(line for line in lines if not line.startswith("{"))

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        for event in found[-3:]:
            check_answer(event)
        return found

    def kinds(self) -> list[str]:
        return [each["event"] for each in self.events()]

    def wait_for(self, event: str, **detail: object) -> dict[str, Any]:
        """The first such event with that detail."""

        def found() -> list[dict[str, Any]]:
            named = [each for each in self.events() if each["event"] == event]
            return [each for each in named if detail.items() <= each["detail"].items()]

        eventually(lambda: bool(found()) or self.process.poll() is not None)
        assert found(), f"it ended with {self.process.poll()}: {self.log}"
        return found()[0]

    def wait_until_it_hears_signals(self) -> None:
        status = Path(f"/proc/{self.process.pid}/status")

        def hears() -> bool:
            caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
            return bool(int(caught[1], 16) & 1 << (signal.SIGTERM - 1))

        eventually(hears)

    def end(self, number: int = signal.SIGTERM) -> int:
        return self.stop(number)

    def wait(self) -> int:
        try:
            return self.process.wait(1.5 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            # It tells where its threads are.
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            raise AssertionError(f"it does not end: {self.log}") from None


@contextlib.contextmanager
def agents(scene: NodeScene) -> Iterator[Callable[..., Agent]]:
    """Starts agents, and ends them with the test."""
    with contextlib.ExitStack() as started:
        yield lambda *words, **more: started.enter_context(Agent(scene.root, *words, **more))


def run(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """What should not start."""
    return finished([*COMMAND, "--root", str(root), *words])


def once(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """One pass of each task, in this process."""
    return call("agent", "--root", str(root), *words, "--once")


def busy_and_waiting(scene: NodeScene) -> tuple[RegionFile, RegionFile]:
    """A more urgent container that launches for ever, and another one."""
    urgent, low = scene.container("urgent", priority=0), scene.container("low")
    urgent.put("recent_kernel", 1_000_000)
    return urgent, low
