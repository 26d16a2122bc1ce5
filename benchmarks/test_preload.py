"""What a driver call costs under a region, and with the bare fake driver: loops in C, in turns."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from scene import compiler, working_directory_root

TESTS = Path(__file__).parent.parent / "tests"
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))

from fake_cuda.driver import FakeGpus, build  # noqa: E402
from support.limited import Limited  # noqa: E402

from libhamiregion.units import GIB, MIB  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger import Ledger

# It holds nothing up, as the kernels of the loop take no time: once the pace has been found.
SM_LIMIT = 50
PACE_FOUND_S = 16
CONTEXT = MIB
MEMORY, LIMIT = 64 * GIB, 48 * GIB


@attrs.frozen
class Bench:
    """The programs, and the two environments that they are compared in."""

    programs: Path
    bare: dict[str, str]
    limited: Limited

    def figures_ns(self, total: int, what: str, warm_up_s: int) -> list[float]:
        """One figure for each round of a loop in a process of its own.

        Args:
            total: The GPU's memory for the bare driver, the limit for the library.
        """
        env = self.bare if total == MEMORY else self.limited.environment()
        command = [self.programs / "cost", what, "7", "20000", str(warm_up_s)]
        self.limited.region.set_recent_kernel(0)
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        reported = f"{total} {CONTEXT}\n"
        assert done.stderr == reported, "a limit that is not held, or not counted, costs nothing"
        if warm_up_s:
            is_noted = self.limited.region.snapshot().recent_kernel == 2
            assert is_noted == (total == LIMIT), "a launch that nobody holds costs nothing"
        return [float(line) for line in done.stdout.split()]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    directory = Path(tempfile.mkdtemp(prefix="hamiregion-bench-", dir=working_directory_root()))
    libraries = build(directory)
    command = ["make", "--silent", f"BUILD={directory}", f"CC={' '.join(compiler())}"]
    subprocess.run([*command, str(directory / "cost")], cwd=TESTS / "preload", check=True)
    gpus = FakeGpus(libraries, directory / "gpus", memory=MEMORY, context=CONTEXT)
    limited = Limited(gpus, directory / "limited", memory=[LIMIT], sm=[None])
    yield Bench(directory, gpus.environment(), limited)
    limited.close()
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("what", "work", "sm_limit", "budget_ns"),
    [
        ("alloc", "cuMemAlloc", None, 120),
        ("launch", "cuLaunchKernel, no SM limit", None, 3),
        ("launch", f"cuLaunchKernel, SM limit {SM_LIMIT}", SM_LIMIT, 20),
    ],
)
def test_a_driver_call(
    bench: Bench,
    ledger: Ledger,
    quick: bool,
    what: str,
    work: str,
    sm_limit: int | None,
    budget_ns: int,
) -> None:
    """What the call costs beyond the bare driver; the rounds of both alternate."""
    bench.limited.region.set_sm_limit(sm_limit, device=0)
    warm_up_s = PACE_FOUND_S if sm_limit else 0
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(2 if quick or warm_up_s else 6):
        bare += bench.figures_ns(MEMORY, what, warm_up_s)
        ours += bench.figures_ns(LIMIT, what, warm_up_s)
    beyond = statistics.median(ours) - statistics.median(bare)
    ledger.add(f"{work}, beyond the bare driver", "ns", budget_ns, beyond, min(ours) - min(bare))


def test_asynchronous_memory(bench: Bench, ledger: Ledger, quick: bool) -> None:
    """An allocation and its end, which cost the driver little: in times of the bare driver."""
    bench.limited.region.set_sm_limit(None, device=0)
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(2 if quick else 6):
        bare += bench.figures_ns(MEMORY, "async", 0)
        ours += bench.figures_ns(LIMIT, "async", 0)
    ratio = statistics.median(ours) / statistics.median(bare)
    work = "cuMemAllocAsync + cuMemFreeAsync, by the bare driver's"
    ledger.add(work, "times", 3, ratio, min(ours) / min(bare))
