"""`hamiregion demo`: real processes in a region of their own, and limits edited under them."""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import attrs
import click

from libhamiregion import LimitBelowUsage, Region, format_size, open_region
from libhamiregion.services.document_socket import VARIABLE, serve_documents
from libhamiregion.testing import FakeContainer, FakeNode
from libhamiregion.units import MIB

from . import options
from .help import verb
from .output import write, write_json
from .service import on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# Less than the two processes of device 0 hold, so that every step is refused.
_LOW_LIMIT = 2 << 30
_HIGH_LIMIT = 8 << 30
_STEP_S = 0.1
_NODE_STEP_S = 1.0
_UNCOUNTED = """
import sys, libhamiregion
regions = [libhamiregion.open_region(each, writable=True) for each in sys.argv[1:]]
print(flush=True)
sys.stdin.read()
"""


@verb("hamiregion demo", "hamiregion demo --node --listen 127.0.0.1:9400")
@click.option(
    "--seconds",
    type=options.Seconds(min=4, max=86_400),
    metavar="SECONDS",
    help="About how long.  [default: 12; with --node until Ctrl-C]",
)
@click.option(
    "--node", is_flag=True, help="Make a whole node of containers, with the exporter on it."
)
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    help="With --node: HOST:PORT or :PORT; repeatable.  [default: 127.0.0.1:9394]",
)
@options.json_option
def demo(seconds: float | None, node: bool, listen: tuple[str, ...], as_json: bool) -> None:
    """Show what a region is: processes, GPUs, and limits edited under them; no GPU needed."""
    if not node and (listen or as_json):
        raise click.UsageError("--listen and --json go with --node")
    on_signals(_leave, signal.SIGTERM, signal.SIGHUP)
    with FakeNode() as fake:
        if node:
            _run_node(fake, listen, seconds, as_json)
            return
        container = fake.add(
            memory_limits=("8GiB", "4GiB"), sm_limits=(50, 30), processes=4, pod="demo"
        )
        with open_region(f"{container.region}", writable=True) as region:
            _Story(region, container, seconds or 12).tell()


def _leave(number: int, _: object) -> None:
    """End as by Ctrl-C: with everything cleaned up."""
    raise SystemExit(128 + number)


# ---- one region ----------------------------------------------------------------------------------


def say(sentence: str) -> None:
    """Write a sentence; those that begin a step are bold on a terminal."""
    click.secho(sentence, bold=not sentence.startswith(" "))


@attrs.frozen
class _Story:
    """The story of one region."""

    region: Region
    container: FakeContainer
    seconds: float

    def tell(self) -> None:
        """Show the steps one by one."""
        region, wait = self.region, self._wait
        say("\nTwo GPUs, 8 GiB and 4 GiB of them for this container: that is a region.")
        say("  It is a file; look at it from another terminal:")
        say(f"  hamiregion show --watch 1 {region.path}")
        say("  Four processes attach to it and allocate memory, as CUDA programs do.")
        wait(1.7, lambda: self._count("granted") > 24)

        say("\nThe first GPU shall have 2 GiB: hamiregion limits set FILE --device 0 --memory 2GiB")
        try:
            region.set_memory_limit(_LOW_LIMIT, device=0)
        except LimitBelowUsage as error:
            say(f"  Refused: {format_size(error.used_bytes or 0)} are in use. Nothing was changed.")
        wait(0.9)

        say("\nThe same with --force: the processes run on, and get no more.")
        before = self._count("refused")
        region.set_memory_limit(_LOW_LIMIT, device=0, force=True)
        say("  device 0: 8 GiB -> 2 GiB, at once, without a restart")
        wait(1.2, lambda: self._count("refused") >= before + 4)
        say(f"  {self._count('refused') - before} allocations refused since.")

        region.set_memory_limit(_HIGH_LIMIT, device=0)

        victim = self.container.processes[0]
        victim.kill()
        say(f"\nkill -9 {victim.pid}: it is dead, and its memory still counts.")
        wait(1.2)
        reaped = {slot.pid: slot.memory_bytes for slot in region.reap()}
        say("\nhamiregion reap FILE proves it dead and frees its memory.")
        say(f"  {format_size(reaped[victim.pid])} are there for the others again.")
        wait(1.0)
        say("\nThat was a real region. Look into yours: hamiregion show FILE")

    def _count(self, what: str) -> int:
        """How many allocations were granted, or refused."""
        return sum(getattr(process, what) for process in self.container.processes)

    def _wait(self, parts: float, until: Callable[[], bool] = lambda: True) -> None:
        """Go on for so many sixths of the time, and until `until` holds."""
        end_s = time.monotonic() + parts * self.seconds / 6
        while time.monotonic() < end_s or not until():
            self.container.step()
            time.sleep(_STEP_S)


# ---- a node --------------------------------------------------------------------------------------


def _run_node(
    fake: FakeNode, listen: tuple[str, ...], seconds: float | None, as_json: bool
) -> None:
    """Make a node with the exporter on it, and keep it busy for so long, or until Ctrl-C."""
    from libhamiregion.exporter import NodeExporter
    from libhamiregion.node import Observer
    from libhamiregion.testing.fake_gpus import FakeGpus

    from .exporter import metrics_server

    _fill(fake)
    socket = f"{fake.directory}/socket"
    with (
        fake.node() as node,
        _uncounted(str(fake.containers[1].region)) as escaped,
        _uncounted() as unmanaged,
    ):
        others = {escaped: (1, 700 * MIB), unmanaged: (0, 120 * MIB)}
        observer = Observer(node, sampler=FakeGpus(fake, others))
        with metrics_server(NodeExporter(node, observer=observer), listen) as server:
            serve_documents(socket, observer)
            _introduce(fake, server.urls, socket, as_json)
            end_s = math.inf if seconds is None else time.monotonic() + seconds
            # Ctrl-C is how it ends, not how it fails.
            with contextlib.suppress(KeyboardInterrupt):
                while time.monotonic() < end_s:
                    fake.step()
                    time.sleep(_NODE_STEP_S)


@contextlib.contextmanager
def _uncounted(*regions: str) -> Iterator[int]:
    """A process without a slot, that maps regions; its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", _UNCOUNTED, *regions],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C is for the demo, which then ends it.
        start_new_session=True,
    ) as process:
        assert process.stdin is not None  # noqa: S101 (it is a pipe)
        assert process.stdout is not None  # noqa: S101 (it is a pipe)
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.stdin.close()


def _fill(fake: FakeNode) -> None:
    """Add containers of each kind that a dashboard should show."""
    fake.add(
        "train",
        pod="bert-0",
        namespace="research",
        memory_limits=("8GiB", "4GiB"),
        sm_limits=(50, 30),
        processes=3,
    )
    fake.add("serve", pod="whisper-0", namespace="inference", memory_limits=("2GiB",))
    crowded = fake.add(pod="etl-7", namespace="batch", memory_limits=("3GiB",), processes=2)
    # Its memory stays charged: the doctor finds it, and an alert should.
    crowded.processes[1].kill()
    with fake.containers[0].open(writable=True) as region:
        region.suspend(fake.containers[0].processes[1].pid)
    fake.add(pod="llama-0", namespace="inference", region=False)


def _introduce(fake: FakeNode, urls: Sequence[str], socket: str, as_json: bool) -> None:
    if as_json:
        places = {"root": str(fake.root), "pod_logs": str(fake.pod_logs), "urls": list(urls)}
        write_json("demo-node/1", places | {"socket": socket})
        return
    place = shlex.join(["--root", str(fake.root), "--pod-logs", str(fake.pod_logs)])
    write(
        f"A node of {len(fake.containers)} containers. Its metrics:\n"
        + "".join(f"  {url}/metrics\n" for url in urls)
        + "Look at it from another terminal:\n"
        + f"  export {VARIABLE}={shlex.quote(socket)}\n"
        + "".join(f"  hamiregion {verb}\n" for verb in ("top", "ps", "containers"))
        + f"  hamiregion doctor --no-driver {place}\n"
        + "Ctrl-C ends it and removes it.\n"
    )
