"""Under a soft limit a program uses what nobody else on its GPU does, and gives it back."""

import pytest
from fake_cuda.driver import FakeGpus
from support.wait import eventually

HELD, FREE = 55, 70
"""Percent; under a limit of 20 to 30 a program has less than the one, without others more than the
other. A machine with other work gives it less time than it wants, never more."""


class Unlimited:
    """Where programs run that know nothing of us."""

    def __init__(self, gpus: FakeGpus) -> None:
        self._gpus = gpus

    def environment(self, **more: str) -> dict[str, str]:
        return self._gpus.environment(**more)


@pytest.mark.slow(keep=1)
def test_a_program_has_what_nobody_else_uses_and_gives_it_back(
    limited, gpus, observer, busy, inject
):
    scene = limited(sm=[20, None], inject=inject)
    scene.region.set_burst(True)
    program = busy(scene, "busy_1ms", pending=200)
    eventually(lambda: observer.busy_percent(0.5, pid=program.pid) > FREE)
    other = busy(Unlimited(gpus), "busy_1ms", pending=200)
    eventually(lambda: 5 < observer.busy_percent(1, pid=program.pid) < HELD - 20)
    other.kill()
    eventually(lambda: observer.busy_percent(0.5, pid=program.pid) > FREE)


def test_the_limit_becomes_soft_and_hard_while_a_program_runs(limited, observer, busy):
    scene = limited(sm=[30, None])
    busy(scene, "busy_1ms", pending=200)
    eventually(lambda: 5 < observer.busy_percent(1) < HELD)
    scene.region.set_burst(True)
    eventually(lambda: observer.busy_percent(0.5) > FREE)
    scene.region.set_burst(False)
    eventually(lambda: 5 < observer.busy_percent(1) < HELD)


@pytest.mark.slow
def test_a_program_that_has_a_context_and_does_nothing_stops_nobody_for_long(
    limited, bare, observer, busy
):
    """It may be about to launch: so it is waited for, for five seconds."""
    scene = limited(sm=[20, None])
    scene.region.set_burst(True)
    program = busy(scene, "busy_1ms", pending=200)
    eventually(lambda: observer.busy_percent(0.5, pid=program.pid) > FREE)
    bare().start()
    eventually(lambda: observer.busy_percent(0.5, pid=program.pid) < HELD)
    eventually(lambda: observer.busy_percent(0.5, pid=program.pid) > FREE)


def test_processes_of_one_region_do_not_hold_each_other_back(limited, observer, busy):
    scene = limited(sm=[20, None])
    scene.region.set_burst(True)
    programs = [busy(scene, "busy_1ms", pending=200) for _ in range(2)]
    eventually(lambda: observer.busy_percent(0.5) > FREE)
    eventually(
        lambda: all(observer.busy_percent(0.5, pid=program.pid) > 10 for program in programs)
    )


def test_a_neighbour_with_a_hard_limit_is_no_reason_to_use_more(limited, observer, busy):
    hard, soft = limited(sm=[30, None]), limited(sm=[20, None])
    soft.region.set_burst(True)
    busy(hard, "busy_1ms", pending=200)
    program = busy(soft, "busy_1ms", pending=200)
    eventually(lambda: observer.busy_percent(1, pid=program.pid) > 5)
    # Beside other work the neighbour may use less, and the program may have what that leaves.
    eventually(lambda: observer.busy_percent(3, pid=program.pid) < HELD)


@pytest.mark.slow
def test_work_of_processes_that_nvml_does_not_show_counts_as_others(limited, gpus, observer, busy):
    """The GPU is busier than all that are shown keep it."""
    scene = limited(sm=[20, None], nvml="quirk private\n")
    scene.region.set_burst(True)
    program = busy(scene, "busy_1ms", pending=200)
    eventually(lambda: observer.busy_percent(0.5, pid=program.pid) > FREE)
    other = busy(Unlimited(gpus), "busy_1ms", pending=200)
    # The two would have a half each.
    eventually(lambda: 5 < observer.busy_percent(1, pid=program.pid) < 35)
    other.kill()
    eventually(lambda: observer.busy_percent(0.5, pid=program.pid) > FREE)
