"""What a driver call costs under a region, beside the bare fake driver: loops in C, in one run."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from scene import compiler, working_directory_root

TESTS = Path(__file__).parent.parent / "tests"
for place in (TESTS, TESTS / "preload"):
    if str(place) not in sys.path:
        sys.path.append(str(place))

from busy_programs import BusyProgram, Observer  # noqa: E402
from cuda_program import CudaProgram  # noqa: E402
from fake_cuda.driver import GIB, MIB, FakeGpus, build  # noqa: E402
from limited import Limited  # noqa: E402

from libhamiregion.launch.libraries import preloaded_library  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger import Ledger

SOFT_LIMIT = 30
# Percent: under a hard limit of so much a program has less, and beside another one at most that.
ALONE, BESIDE = 60, 42
# It holds nothing up, as the kernels of the loop take no time: once the pace has been found.
SM_LIMIT = 50
PACE_FOUND_S = 5
LIVE = 1_000_000
SIZE = 512
CONTEXT = MIB
MEMORY, LIMIT = 64 * GIB, 48 * GIB
# Above the limit and below the GPU's memory: who refuses it is the library.
REFUSED = {MEMORY: 1 << 44, LIMIT: 56 * GIB}


@attrs.frozen
class Bench:
    """The programs, and the two environments that they are compared in."""

    programs: Path
    bare: dict[str, str]
    limited: Limited

    def figures_ns(
        self, total: int, what: str, live: int, rounds: int, calls: int, warm_up_s: int
    ) -> list[float]:
        """One figure for each round of a loop in a process of its own.

        Args:
            total: The GPU's memory for the bare driver, the limit for the library.
        """
        env = self.bare if total == MEMORY else self.limited.environment()
        command = [
            str(self.programs / "cost"),
            *map(str, (what, live, rounds, calls, 0, warm_up_s)),
        ]
        command.append(str(REFUSED[total]))
        self.limited.region.set_recent_kernel(0)
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        said = f"{total} {CONTEXT + live * SIZE}\n"
        assert done.stderr == said, "a limit that is not held, or not counted, costs nothing"
        if warm_up_s:
            is_noted = self.limited.region.snapshot().recent_kernel == 2
            assert is_noted == (total == LIMIT), "a launch that nobody holds costs nothing"
        return [float(line) for line in done.stdout.split()]

    def start_ms(self, total: int, *, is_held: bool) -> float:
        """From the start to the end of a program that launches once."""
        env = self.bare if total == MEMORY else self.limited.environment()
        self.limited.region.set_recent_kernel(0)
        begun_s = time.perf_counter()
        done = subprocess.run(
            [self.programs / "starting"], env=env, check=True, capture_output=True
        )
        taken_s = time.perf_counter() - begun_s
        assert int(done.stdout) == total, "a limit that is not held costs nothing"
        is_noted = self.limited.region.snapshot().recent_kernel == 2
        assert is_noted == is_held, "a launch that nobody holds costs nothing"
        return taken_s * 1e3


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    directory = Path(tempfile.mkdtemp(prefix="hamiregion-bench-", dir=working_directory_root()))
    libraries = build(directory)
    command = ["make", "--silent", f"BUILD={directory}", f"CC={' '.join(compiler())}"]
    subprocess.run(command, cwd=TESTS / "preload", check=True)
    gpus = FakeGpus(libraries, directory / "gpus", memory=MEMORY, context=CONTEXT)
    limited = Limited(gpus, directory / "limited", memory=[LIMIT], sm=[None])
    yield Bench(directory, gpus.environment(), limited)
    limited.close()
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("what", "work", "live", "sm_limit", "budget_ns"),
    [
        ("alloc", "cuMemAlloc", 0, None, 120),
        ("free", "cuMemFree", 0, None, 120),
        ("spaced-alloc", "cuMemAlloc after 20 us of other work", 0, None, 250),
        ("spaced-info", "cuMemGetInfo after 20 us of other work", 0, None, 250),
        ("pair", f"cuMemAlloc + cuMemFree, {LIVE:,} live", LIVE, None, 240),
        ("refused", "a refused cuMemAlloc", 0, None, None),
        ("launch", "cuLaunchKernel, no SM limit", 0, None, 3),
        ("launch", f"cuLaunchKernel, SM limit {SM_LIMIT}", 0, SM_LIMIT, 20),
    ],
)
def test_a_driver_call(
    bench: Bench,
    benchmark: Any,
    ledger: Ledger,
    quick: bool,
    what: str,
    work: str,
    live: int,
    sm_limit: int | None,
    budget_ns: int | None,
) -> None:
    """What the call costs beyond the bare driver; the rounds of both alternate."""
    bench.limited.region.set_sm_limit(sm_limit, device=0)
    calls = 200 if what == "refused" else 2_000 if what.startswith("spaced") else 20_000
    bare: list[float] = []
    ours: list[float] = []
    warm_up_s = PACE_FOUND_S if sm_limit else 0

    def once() -> None:
        for total, figures in ((MEMORY, bare), (LIMIT, ours)):
            figures.extend(bench.figures_ns(total, what, live, 7, calls, warm_up_s))

    benchmark.pedantic(once, rounds=2 if quick or live or warm_up_s else 6)
    beyond = statistics.median(ours) - statistics.median(bare)
    ledger.add(f"{work}, beyond the bare driver", "ns", budget_ns, beyond, min(ours) - min(bare))
    ratio = statistics.median(ours) / statistics.median(bare)
    budget = 2 if what in ("alloc", "free", "pair") else None
    ledger.add(f"{work}, of the bare driver", "x", budget, ratio, min(ours) / min(bare))


@pytest.mark.parametrize("sm_limit", [None, SM_LIMIT])
def test_a_program_that_launches_once(
    bench: Bench, benchmark: Any, ledger: Ledger, quick: bool, sm_limit: int | None
) -> None:
    """What the library adds to it from start to end; the runs of both alternate."""
    bench.limited.region.set_sm_limit(sm_limit, device=0)
    taken_ms: dict[int, list[float]] = {MEMORY: [], LIMIT: []}

    def once() -> None:
        for total, figures in taken_ms.items():
            is_held = total == LIMIT and sm_limit is not None
            figures.append(bench.start_ms(total, is_held=is_held))

    benchmark.pedantic(once, rounds=20 if quick else 100)
    bare, ours = taken_ms.values()
    beyond = statistics.median(ours) - statistics.median(bare)
    limit = "no SM limit" if sm_limit is None else f"SM limit {sm_limit}"
    work = f"start to end of a program that launches once, {limit}, beyond the bare driver"
    ledger.add(work, "ms", 2, beyond, min(ours) - min(bare))


class Bare:
    """Where programs run that nothing limits."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def environment(self, **more: str) -> dict[str, str]:
        return self._environment | more


@pytest.fixture
def observer(bench: Bench) -> Iterator[Observer]:
    program = CudaProgram(bench.bare)
    yield Observer(program)
    program.kill()


@pytest.mark.parametrize(("kernel", "pending"), [("busy_1ms", 20), ("busy_10us", 2000)])
def test_a_program_under_a_soft_limit(
    bench: Bench, observer: Observer, benchmark: Any, ledger: Ledger, kernel: str, pending: int
) -> None:
    """What it has alone of what it has bare, and beside a program that has just come."""
    region, bare = bench.limited.region, Bare(bench.bare)
    region.set_sm_limit(SOFT_LIMIT, device=0)
    region.set_burst(True)

    def share(program: BusyProgram, settle_s: float) -> float:
        time.sleep(settle_s)
        return observer.busy_percent(3, pid=program.pid)

    def once() -> tuple[float, float]:
        with contextlib.ExitStack() as programs:

            def start(scene: Limited | Bare, kernel: str, pending: int) -> BusyProgram:
                program = BusyProgram(scene, bench.programs, kernel, pending=pending)
                programs.callback(program.kill)
                return program

            plain = start(bare, kernel, pending)
            without = share(plain, 1)
            plain.kill()
            program = start(bench.limited, kernel, pending)
            alone = share(program, 4)
            start(bare, "busy_1ms", 20)
            beside = share(program, 0.5)
        assert alone > ALONE, "what is not used is not left unused"
        assert beside < BESIDE, "what is not given back is no soft limit"
        return 100 * (1 - alone / without), beside - SOFT_LIMIT

    lost, above = benchmark.pedantic(once, rounds=1)
    region.set_burst(False)
    work = f"soft limit {SOFT_LIMIT}, {kernel}"
    ledger.add(f"{work}: alone, less than bare", "%", 5, lost)
    ledger.add(f"{work}: beside another, above it 0.5 s later", "%", 5, above)


def test_a_program_without_cuda_starts(benchmark: Any, ledger: Ledger, quick: bool) -> None:
    """What the preload adds to the start of `true`."""
    library = preloaded_library()
    loaded = {**os.environ, "LD_PRELOAD": library}
    maps = ["cat", "/proc/self/maps"]
    seen = subprocess.run(maps, env=loaded, check=True, capture_output=True, text=True).stdout
    assert library in seen, "a library that is not loaded costs nothing"
    taken: dict[str, list[float]] = {"plain": [], "loaded": []}

    def once() -> None:
        for name, env in (("plain", dict(os.environ)), ("loaded", loaded)):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            for _ in range(20):
                subprocess.run(["true"], env=env, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            taken[name].append(cpu_s * 1e6 / 20)

    benchmark.pedantic(once, rounds=5 if quick else 20)
    beyond = statistics.median(taken["loaded"]) - statistics.median(taken["plain"])
    least = min(taken["loaded"]) - min(taken["plain"])
    work = "start of a program without CUDA, beyond the plain one"
    ledger.add(work, "us", None, beyond, least)
