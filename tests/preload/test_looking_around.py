"""Those who stay look after what others leave in their region, whoever stands in their way."""

import json

import pytest
from support.region_file import RegionFile
from support.wait import eventually

from libhamiregion import Layout
from libhamiregion.units import GIB, MIB

CONTEXT = 256 * MIB


@pytest.mark.slow
def test_a_forged_slot_does_not_keep_the_others_from_looking(limited):
    """The process with the lowest pid looks after the others; anyone can write one."""
    scene = limited(memory=[4 * GIB])
    first, second = scene.program().start(), scene.program().start()
    first.allocate(GIB)
    table = RegionFile(scene.path, Layout.V1_2)
    table.put("slot_pid", 1, slot=2)
    table.put("slot_status", 1, slot=2)
    table.put("proc_num", 3)
    first.kill()
    eventually(lambda: scene.used() == CONTEXT)
    assert second.info() == (4 * GIB - CONTEXT, 4 * GIB)


def test_a_neighbour_that_became_another_program_is_reaped(limited):
    """Its pid lives on, and what it had is free."""
    scene = limited(memory=[4 * GIB])
    programs = sorted((scene.program() for _ in range(2)), key=lambda program: program.pid)
    for program in programs:
        program.start()
    survivor, other = programs
    other.allocate(GIB)
    assert scene.used() == 2 * CONTEXT + GIB
    other.process.stdin.write(json.dumps([["exec", "sleep", "600"]]) + "\n")
    other.process.stdin.flush()
    eventually(lambda: scene.used() == CONTEXT)
    assert other.process.poll() is None
    pids = {each.pid for each in scene.region.snapshot().processes}
    assert survivor.pid in pids
    assert other.pid not in pids
