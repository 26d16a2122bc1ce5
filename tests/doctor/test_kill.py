"""A doctor that is killed in the middle of a repair leaves what the next one mends."""

import random
import signal
import subprocess
import sys
import time

import pytest
from support.containers import needs_namespaces
from support.doctor_node import DoctorNode
from support.lock_bytes import NOBODY, hold, is_free
from support.node_scene import GIB, SceneContainer
from support.stress import scaled

from libhamiregion import Layout
from libhamiregion.doctor import FindingKind

pytestmark = needs_namespaces

REPAIR = """
import sys
from libhamiregion.doctor import diagnose, repair
from libhamiregion.node import Node, Observer
with Node(sys.argv[1]) as node:
    while True:
        found = diagnose(Observer.for_command(node).observe())
        print(flush=True)
        repair(node, found)
"""


def make_ill(place: SceneContainer) -> None:
    """A lock of the dead, a dead process in the middle and one at the end, a host pid gone."""
    place.put("slot_hostpid", 0)
    for number in range(2):
        place.add_process(NOBODY + 1 + number, {0: GIB})
    hold(place, NOBODY)


def killed_repairs(doctor_node: DoctorNode, layout: Layout, times: int) -> None:
    dice = random.Random(layout.value)
    place = doctor_node.container(layout=layout)
    inside = place.start()
    pid, _ = place.spawn(inside)
    for _ in range(times):
        make_ill(place)
        with subprocess.Popen(
            [sys.executable, "-c", REPAIR, str(doctor_node.root)], stdout=subprocess.PIPE
        ) as doctor:
            # Diagnosed: from here on it is at work.
            doctor.stdout.readline()
            time.sleep(dice.uniform(0, 0.02))
            doctor.send_signal(signal.SIGKILL)
        assert FindingKind.USAGE_ABOVE_LIMIT not in doctor_node.kinds(settle_s=0)
        done = doctor_node.repair()
        assert all(each.done for each in done), done
        assert doctor_node.findings() == ()
        assert is_free(place)
        assert place.used() == 2 * GIB
    inside.tell(f"@{pid}", "charge", GIB)
    assert place.used() == 3 * GIB
    assert set(place.host_pids()) >= {1, pid}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_2])
def test_a_killed_repair_is_finished_by_the_next(doctor_node, layout):
    killed_repairs(doctor_node, layout, 2)


@pytest.mark.slow
def test_many_killed_repairs_are_finished_by_the_next(doctor_node, layout):
    killed_repairs(doctor_node, layout, scaled(30, 2))
