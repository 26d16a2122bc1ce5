"""A program is held to the SM limit of its region, which rules while it runs."""

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time

import pytest
from fake_cuda.driver import stop
from support.cuda_program import INVALID_HANDLE, OUT, SUCCESS
from support.limited import Limited
from support.wait import PATIENCE_S, eventually, on_this_machine_s

import libhamiregion as hami
from libhamiregion.units import MIB

CONTEXT = 256 * MIB
OFFSET = 100_000_000  # no process has such a pid
HELD, FREE = 60, 75
"""Percent; under a limit of 20 to 40 a GPU is less busy than the one, without more than the other.
A machine with other work gives a program less time than it wants, never more."""

MANY = 24  # processes of one region


def sm_percent(scene: Limited, pid: int, device: int = 0) -> int:
    """How busy the region says that a process keeps a device."""
    found = [each for each in scene.region.snapshot().processes if each.pid == pid]
    return found[0].devices[device].sm_util_percent if found else 0


@pytest.mark.slow(keep=1)
def test_kernels_and_graphs_are_held_to_the_limits_of_their_devices(
    limited, observer, busy, inject
):
    scene = limited(sm=[20, 50], inject=inject)
    busy(scene, "busy_1ms")
    busy(scene, "busy_100us", style="graph", pending=20, device=1)
    eventually(lambda: observer.worked_ns(0) > 0 and observer.worked_ns(1) > 0)
    time.sleep(2)  # the time that a program has to find its pace

    def both_work() -> bool:
        # The clock is read before and after all else: the questions, too, may take their time.
        begun_ns = time.monotonic_ns()
        before = observer.worked_ns(0), observer.worked_ns(1)
        time.sleep(3)
        worked_ns = [observer.worked_ns(at) - before[at] for at in (0, 1)]
        elapsed_ns = time.monotonic_ns() - begun_ns
        kernels, graphs = (100 * each / elapsed_ns for each in worked_ns)
        return 0 < kernels <= 30 and 0 < graphs <= 60

    eventually(both_work)


def test_a_process_goes_by_its_own_figures_where_the_one_that_measures_is_stopped(
    limited, observer, busy
):
    scene = limited(sm=[20, None])
    first = busy(scene, "busy_1ms")
    eventually(lambda: sm_percent(scene, first.pid) > 0)  # nobody else could have measured it
    second = busy(scene, "busy_1ms", pending=200)
    eventually(lambda: sm_percent(scene, second.pid) > 0)
    stop(first.pid, scene.gpus.state)
    # By that figure there is much left of the limit.
    scene.region.set_utilization(second.pid, 0, sm=0)
    eventually(lambda: sm_percent(scene, second.pid) > 0)
    eventually(lambda: 0 < observer.busy_percent(1) < HELD)
    os.kill(first.pid, signal.SIGCONT)
    eventually(lambda: sm_percent(scene, first.pid) > 0)


@pytest.mark.parametrize(("limit", "most"), [(10, 30), (50, 75)])
def test_many_processes_are_held_together_and_none_of_them_stops(
    limited, observer, busy, limit, most
):
    """A share of less than half a percent of the time shows as none, in short kernels."""
    scene = limited(sm=[limit, None])
    programs = [busy(scene, "busy_100us") for _ in range(MANY)]
    # More than what each has before it finds its pace.
    eventually(lambda: all(observer.worked_ns(pid=each.pid) > 3_000_000 for each in programs))
    eventually(lambda: 0 < observer.busy_percent(1) < most)
    before = [observer.worked_ns(pid=each.pid) for each in programs]
    eventually(
        lambda: all(
            observer.worked_ns(pid=each.pid) > worked_ns
            for each, worked_ns in zip(programs, before, strict=True)
        )
    )


def test_the_region_shows_how_busy_each_process_is(limited, busy):
    scene = limited(sm=[40, None])
    programs = [busy(scene, "busy_1ms") for _ in range(2)]

    def is_shown() -> bool:
        shown = {each.pid: each for each in scene.region.snapshot().processes}
        return all(
            shown[program.pid].host_pid == program.pid
            and shown[program.pid].devices[0].sm_util_percent > 0
            and shown[program.pid].devices[0].memory_monitor_bytes == CONTEXT
            for program in programs
        )

    eventually(is_shown)
    assert scene.region.snapshot().devices[1].sm_util_percent == 0


def test_a_region_without_uuids_is_measured_too(limited, observer, busy):
    """Its rows are CUDA's devices."""
    scene = limited(sm=[None, 20], uuids=[])
    program = busy(scene, "busy_1ms", pending=200, device=1)
    eventually(lambda: sm_percent(scene, program.pid, device=1) > 0)
    assert sm_percent(scene, program.pid, device=0) == 0
    eventually(lambda: 0 < observer.busy_percent(1, device=1) < HELD)


def test_a_limit_that_is_set_lowered_and_lifted_is_obeyed(limited, observer, busy):
    scene = limited(sm=[None, None])
    busy(scene, "busy_1ms", pending=200)
    eventually(lambda: observer.busy_percent(0.5) > FREE)
    scene.region.set_sm_limit(40, device=0)
    eventually(lambda: 0 < observer.busy_percent(1) < HELD)
    scene.region.set_sm_limit("unlimited", device=0)
    eventually(lambda: observer.busy_percent(0.5) > FREE)
    scene.region.set_sm_limit(20, device=0)
    eventually(lambda: 0 < observer.busy_percent(1) < HELD)
    scene.region.set_utilization_switch(False)
    eventually(lambda: observer.busy_percent(0.5) > FREE)


def test_a_launch_that_the_driver_refuses_costs_nothing(limited):
    program = limited(sm=[50, None]).program().start()
    kernel = program.kernel()

    def launch(function: int, width: int) -> int:
        sizes = (width, width, 1, 32, 1, 1, 0)
        return program.call("cuLaunchKernel", function, *sizes, None, None, None)[0]

    for _ in range(100):
        assert launch(kernel, 1) == SUCCESS
    assert launch(0, 2**32 - 1) == INVALID_HANDLE
    # Were it paid for, the next launches would wait for minutes.
    answers: list[int] = []
    waiting = threading.Thread(
        target=lambda: answers.extend(launch(kernel, 1) for _ in range(3)), daemon=True
    )
    waiting.start()
    waiting.join(PATIENCE_S)
    program.process.kill()
    waiting.join()
    assert answers == [SUCCESS] * 3


@pytest.mark.parametrize(("policy", "switch"), [("disable", True), ("force", False)])
def test_the_policy_of_the_environment_overrides_the_switch(
    limited, observer, busy, policy, switch
):
    scene = limited(sm=[20, None])
    scene.region.set_utilization_switch(switch)
    busy(scene, "busy_1ms", pending=200, GPU_CORE_UTILIZATION_POLICY=policy)
    if policy == "disable":
        eventually(lambda: observer.busy_percent(0.5) > FREE)
    else:
        eventually(lambda: 0 < observer.busy_percent(1) < HELD)


def test_threads_launch_through_forks_and_changes_of_the_limit(limited, c_programs, inject):
    """None of them waits for ever, and the program ends by itself."""
    scene = limited(sm=[60, None], inject=inject)
    program = subprocess.Popen([str(c_programs / "launchers"), "6", "150"], env=scene.environment())
    for limit in itertools.cycle([None, 60, 30]):
        scene.region.set_sm_limit(limit, device=0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert program.wait(0.5) == 0
            break


def test_a_suspended_process_launches_nothing(limited, observer, busy):
    scene = limited(sm=[None, None])
    program = busy(scene, "busy_1ms")
    scene.region.suspend(program.pid)
    eventually(lambda: observer.busy_percent(0.3) == 0)
    scene.region.resume(program.pid)
    eventually(lambda: observer.busy_percent(0.3) > 0)


def test_limits_and_suspensions_hold_in_a_context_that_is_made_in_an_unknown_way(
    limited, observer, busy
):
    scene = limited(sm=[None, None])
    program = busy(scene, "busy_1ms", style="unknown", pending=200)
    eventually(lambda: observer.busy_percent(0.5) > FREE)
    scene.region.set_sm_limit(20, device=0)
    eventually(lambda: 0 < observer.busy_percent(1) < HELD)
    scene.region.suspend(program.pid)
    eventually(lambda: observer.busy_percent(0.3) == 0)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("limit", [50, None])
def test_feedback_stops_the_launches_that_it_stops_in_libvgpu(limited, observer, busy, limit):
    """Up to HAMi 2.8.0 those of every process, later those under an SM limit."""
    layouts = (hami.Layout.V1_1, hami.Layout.V1_1_POSTINIT, hami.Layout.V1_2)
    scenes = [limited(sm=[limit, None], layout=layout) for layout in layouts]
    programs = [busy(scene, "busy_1ms") for scene in scenes]

    def works() -> list[bool]:
        return [observer.busy_percent(0.3, pid=program.pid) > 0 for program in programs]

    eventually(lambda: works() == [True, True, True])
    for scene in scenes:
        scene.region.set_recent_kernel(-1)
    stopped = [False, limit is None, limit is None]
    eventually(lambda: works() == stopped)
    for scene in scenes:
        scene.region.set_recent_kernel(0)
    eventually(lambda: works() == [True, True, True])


@pytest.mark.parametrize("limit", [50, None])
def test_the_region_is_told_of_launches(limited, busy, limit):
    scene = limited(sm=[limit, None])
    # Of its creation.
    created_s = scene.region.snapshot().last_kernel_time_s or 0
    busy(scene, "busy_1ms")
    for _ in range(2):
        eventually(lambda: scene.region.snapshot().recent_kernel == 2)
        scene.region.set_recent_kernel(0)
    eventually(lambda: (scene.region.snapshot().last_kernel_time_s or 0) > created_s)


def test_without_figures_nothing_is_held_up_and_one_line_says_so(limited, observer, busy):
    """As on MIG devices and under WSL, whose NVML answers NVML_ERROR_NOT_SUPPORTED."""
    names = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
    rules = "".join(f"error {name} 3 *\n" for name in names)
    scene = limited(sm=[20, None], nvml=rules)
    program = busy(scene, "busy_1ms", pending=200)
    eventually(lambda: observer.busy_percent(0.5) > FREE)
    assert program.kill() == (
        "libhamiregion: the SM limit of device 0 cannot be held: NVML does not tell how busy each"
        " process keeps it\n"
    )


def test_on_a_blackwell_gpu_a_program_is_held_as_on_any(limited, observer, busy):
    """Its older function for the work of processes answers 0 %."""
    scene = limited(sm=[20, None], nvml="quirk blackwell\n")
    program = busy(scene, "busy_1ms", pending=200)
    eventually(lambda: sm_percent(scene, program.pid) > 0)
    eventually(lambda: 0 < observer.busy_percent(1) < HELD)


def test_a_program_that_the_driver_shows_by_another_pid_is_held(limited, gpus, observer, busy):
    """As in a container whose NVML has the host's pids."""
    gpus.settings["FAKE_CUDA_PID_OFFSET"] = str(OFFSET)
    scene = limited(sm=[20, None])
    first = busy(scene, "busy_1ms", pending=200)
    eventually(lambda: sm_percent(scene, first.pid) > 0)
    second = busy(scene, "busy_1ms", pending=200)
    eventually(lambda: sm_percent(scene, second.pid) > 0)
    host_pids = {each.pid: each.host_pid for each in scene.region.snapshot().processes}
    assert host_pids == {each.pid: each.pid + OFFSET for each in (first, second)}
    eventually(lambda: 0 < observer.busy_percent(1) < HELD)


@pytest.mark.slow
def test_a_program_that_cannot_be_told_from_others_is_not_held_and_says_so(
    limited, gpus, bare, observer, busy
):
    """The driver has not shown who was there before it, and then shows two that it may be."""
    gpus.settings["FAKE_CUDA_PID_OFFSET"] = str(OFFSET)
    bare().start()
    rules = "error nvmlDeviceGetComputeRunningProcesses_v3 999 * 2\n"
    scene = limited(sm=[20, None], nvml=rules)
    program = busy(scene, "busy_1ms", pending=200)
    assert program.process.stderr.readline() == (
        "libhamiregion: the SM limit of device 0 cannot be held: NVML does not show this process by"
        " a pid that it can be known by\n"
    )
    eventually(lambda: observer.busy_percent(0.5) > FREE)


@pytest.mark.parametrize("name", ["cuLaunchKernel", "cuLaunchKernel_ptsz"])
def test_a_captured_launch_costs_nothing(limited, name):
    """It only becomes a node of a graph; those after it would wait for half a second."""
    scene = limited(sm=[10, None])
    relaxed, per_thread_stream = 2, 2

    def waited_s() -> float:
        program = scene.program().start()
        kernel = program.kernel()
        captured = stream = program.do("cuStreamCreate", OUT, 0)
        if name.endswith("_ptsz"):
            captured, stream = per_thread_stream, None

        def launch(width: int) -> None:
            program.do(name, kernel, width, 1, 1, 32, 1, 1, 0, stream, None, None)

        def has_a_rate() -> bool:
            launch(1)
            return sm_percent(scene, program.pid) > 0

        eventually(has_a_rate)
        time.sleep(0.3)  # tokens come: without them a captured launch has none to pay with
        program.do("cuStreamBeginCapture_v2", captured, relaxed)
        launch(2**31 - 1)
        program.do("cuStreamEndCapture", captured, OUT)
        begun_s = time.monotonic()
        launch(1)
        launch(1)
        program.kill()
        return time.monotonic() - begun_s

    # A busy machine may hold up the first.
    assert any(waited_s() < 0.3 for _ in range(3))


@pytest.mark.slow
def test_a_launch_waits_ten_seconds_at_most(limited):
    """The kernel that it waits behind may be one that waits for it."""
    program = limited(sm=[10, None]).program().start()
    kernel = program.kernel("busy_8000ms")
    longest_s = 0.0
    for _ in range(2):
        begun_s = time.monotonic()
        program.do("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        longest_s = max(longest_s, time.monotonic() - begun_s)
    assert longest_s < 10 + on_this_machine_s(0.6)
