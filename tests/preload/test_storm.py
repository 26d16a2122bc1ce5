"""Many processes and threads at once never pass the limit, and leave nothing behind."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.cuda_program import OUT, CudaProgram
from support.limited import Limited
from support.stress import scaled
from support.wait import PATIENCE_S, eventually

from libhamiregion import ProcessStatus
from libhamiregion.units import GIB, MIB

CONTEXT = 256 * MIB


CHARGED_FIRST, ALL_WAYS = 4, 6
EXECS = 1
LARGEST = 256 * MIB

LENGTHS = [
    (2, 3, 3, 60),
    pytest.param(3, 6, scaled(40, 3), 1500, marks=pytest.mark.slow),
]


def high(observer: CudaProgram) -> int:
    """The most memory of the first GPU that has ever been in use at one time."""
    return observer.do("fake_cuda_used_high", 0, OUT)


def play(scene: Limited, storm: Path, *wanted: int) -> tuple[int, int]:
    """Play a storm to its end: allocations granted, and refused. It says nothing else."""
    done = scene.run(str(storm), *map(str, wanted))
    assert done.returncode == 0, done.stderr
    said = [tuple(map(int, line.split())) for line in done.stderr.splitlines()]
    return sum(granted for granted, _ in said), sum(refused for _, refused in said)


@pytest.mark.parametrize(("processes", "threads", "rounds", "calls"), LENGTHS)
def test_a_storm_never_passes_the_limit(
    limited, bare, c_programs, inject, processes, threads, rounds, calls
):
    scene = limited(memory=[2 * GIB], inject=inject)
    wanted = (processes, processes, threads, rounds, calls, LARGEST, CHARGED_FIRST, 0)
    granted, refused = play(scene, c_programs / "storm", *wanted)
    assert granted > 0
    assert refused > 0
    # What a process's first context takes is known when it is there: then it is taken back.
    assert GIB < high(bare()) <= 2 * GIB + processes * CONTEXT
    assert scene.used() == 0


@pytest.mark.parametrize(("processes", "threads", "rounds", "calls"), LENGTHS)
def test_a_storm_of_everything_leaves_nothing(
    limited, c_programs, processes, threads, rounds, calls
):
    scene = limited(memory=[2 * GIB])
    wanted = (processes, processes, threads, rounds, calls, LARGEST, ALL_WAYS, 0)
    granted, refused = play(scene, c_programs / "storm", *wanted)
    assert granted > 0
    assert refused > 0
    program = scene.program().start()
    eventually(lambda: scene.used() == CONTEXT)
    assert program.info() == (2 * GIB - CONTEXT, 2 * GIB)


@pytest.mark.slow
def test_a_storm_with_pools_is_hardly_ever_above_the_limit(limited, gpus, bare, c_programs):
    """A piece may be larger than was charged, until its allocation is undone."""
    gpus.settings["FAKE_CUDA_CONTEXT"] = "0"
    scene = limited(memory=[2 * GIB])
    observer = bare().start()
    wanted = map(str, (1, 3, 4, 4, 400, 100 * MIB, CHARGED_FIRST + 1, 0))
    storm = subprocess.Popen(
        [str(c_programs / "storm"), *wanted], env=scene.environment(), stderr=subprocess.PIPE
    )
    samples = above = 0
    while storm.poll() is None:
        free, total = observer.info()
        samples += 1
        above += total - free > 2 * GIB
    assert storm.communicate()[1] is not None
    assert storm.returncode == 0
    assert samples > 100
    assert above <= samples * 0.02


@pytest.mark.slow
def test_programs_that_become_others_leave_nothing(limited, c_programs):
    scene = limited(memory=[2 * GIB])
    for seed in range(scaled(20, 2)):
        play(scene, c_programs / "storm", seed, 2, 3, 6, 60, LARGEST, ALL_WAYS, EXECS)
    program = scene.program().start()
    eventually(lambda: scene.used() == CONTEXT)
    assert program.info() == (2 * GIB - CONTEXT, 2 * GIB)


@pytest.mark.parametrize("kills", [12, pytest.param(scaled(200, 20), marks=pytest.mark.slow)])
def test_the_killed_are_reaped_and_hold_no_lock(limited, c_programs, kills):
    scene = limited(memory=[4 * GIB])
    survivor = scene.program().start()
    chance = random.Random(kills)
    wanted = (1, 3, 100000, 100000, LARGEST, ALL_WAYS, 0)
    for number in range(kills):
        known = pids(scene)
        storm = subprocess.Popen(
            [str(c_programs / "storm"), str(number), *map(str, wanted)],
            env=scene.environment(),
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        eventually(lambda known=known, storm=storm: pids(scene) - known or storm.poll() is not None)
        assert storm.poll() is None, storm.communicate()
        (newcomer,) = pids(scene) - known
        ends = os.pidfd_open(newcomer)
        time.sleep(chance.uniform(0, 0.02))
        os.killpg(storm.pid, signal.SIGKILL)
        storm.communicate()
        # As long as it has not ended, what it holds is refused to the next.
        assert select.select([ends], [], [], PATIENCE_S)[0]
        os.close(ends)
    eventually(lambda: pids(scene) == {survivor.pid})
    assert scene.used() == CONTEXT
    survivor.free(survivor.allocate(4 * GIB - CONTEXT))
    with scene.region.lock(1.0):
        pass


def pids(scene: Limited) -> set[int]:
    """The processes that use the region."""
    processes = scene.region.snapshot().processes
    return {each.pid for each in processes if each.status == ProcessStatus.RUNNING}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_pool_of_processes_shares_the_limit(limited, start, inject):
    """Each worker of a pool is a program under the region; the parent uses the driver after it."""
    scene = limited(memory=[GIB], inject=inject)
    pool = str(Path(__file__).parent / "clients" / "pool.py")
    done = scene.run(sys.executable, "-I", pool, start, str(100 * MIB))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0", "2"]
    # A worker ends without a word to its libraries: whoever comes next takes its slot away.
    scene.program().start()
    eventually(lambda: scene.used() == CONTEXT)
