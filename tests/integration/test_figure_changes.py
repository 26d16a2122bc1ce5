"""Which containers the task that writes the driver's figures looks at slot by slot."""

import random
from typing import TYPE_CHECKING, TypeAlias

import pytest
from containers import Starter, needs_namespaces
from fake_nvml.driver import FakeDriver
from fake_nvml.scenes import CARD, GPU, MIB, OTHER, SECOND
from namespaces import needs_first_namespace
from node_scene import NodeScene

from libhamiregion import Layout
from libhamiregion.agent.figure_changes import FIGURE_COLUMNS, MEMORY, FigureChanges
from libhamiregion.node import Container, Node, NvmlSampler, Observation, Observer

if TYPE_CHECKING:
    from support.region_file import RegionFile

pytestmark = [needs_first_namespace, needs_namespaces]

# A process in a region, a device and a field.
Figure: TypeAlias = "tuple[str | None, int, int, str]"
PARTS = ("sm", "enc", "dec")


def slot_by_slot(
    observation: Observation,
) -> tuple[dict[Figure, int], dict[Figure, Container]]:
    """What stands in the slots of proved processes; where the driver says something else."""
    assert observation.sample is not None
    stands: dict[Figure, int] = {}
    differs: dict[Figure, Container] = {}
    for view in observation.details():
        if view.snapshot is None or view.processes is None:
            continue
        uuids = {each.index: each.uuid for each in view.snapshot.devices}
        for usage in view.snapshot.processes:
            process = view.processes.alive.get(usage.pid)
            for device in usage.devices if process is not None else ():
                assert process is not None
                uuid = uuids[device.index]
                driver = None if uuid is None else observation.sample.process(uuid, process.pid)
                for field, (column, said) in FIGURE_COLUMNS.items():
                    if field != MEMORY and not view.snapshot.layout.has_utilization:
                        continue
                    key = (view.container.region_path, process.pid, device.index, field)
                    stands[key] = getattr(device, column)
                    says = None if driver is None else getattr(driver, said)
                    if says is not None and says != stands[key]:
                        differs[key] = view.container
    return stands, differs


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_where_a_figure_stands_still_that_is_not_the_drivers_and_nowhere_else(
    scene: NodeScene,
    node: Node,
    start: Starter,
    nvml_sampler: NvmlSampler,
    fake_driver: FakeDriver,
    seed: int,
) -> None:
    moves = random.Random(seed)
    files = [
        scene.container(f"a{number}", layout=layout, uuids=[GPU, OTHER])
        for number, layout in enumerate((Layout.V1_2, Layout.V1_1, Layout.V1_1_POSTINIT))
    ]
    inside = start()
    living: list[tuple[RegionFile, int, int]] = []

    def spawn() -> None:
        file = moves.choice(files)
        pid, host_pid = inside.child("spawn")
        inside.tell(f"@{pid}", "attach", file.path)
        living.append((file, pid, host_pid))

    for _ in range(4):
        spawn()
    memory: dict[tuple[int, int], int] = {}
    observer = Observer(node, sampler=nvml_sampler)
    changes = FigureChanges()
    stood: dict[Figure, int] = {}
    told = 0
    for step in range(24):
        for _ in range(moves.randrange(3)):
            move = moves.randrange(5)
            if move == 0 and len(living) < 7:
                spawn()
            elif move == 1 and len(living) > 2:
                inside.tell("kill", living.pop(moves.randrange(len(living)))[1])
            elif move == 2:
                memory[moves.choice(living)[2], moves.randrange(2)] = moves.randrange(3) * MIB
            else:
                file, device = moves.choice(files), moves.randrange(2)
                file.put("slot_monitorused", moves.randrange(3) * MIB, device=device)
                if file.layout.has_utilization:
                    part = f"slot_util.{moves.choice(PARTS)}"
                    file.put(part, moves.randrange(3), device=device)
        fake_driver.play(
            CARD,
            SECOND,
            *(
                f"process {device} compute {host_pid} {nbytes}"
                for (host_pid, device), nbytes in memory.items()
                if any(host_pid == each[2] for each in living)
            ),
            *(f"sample 0 {moves.choice(living)[2]} 100 2 0 1 0" for _ in range(step % 2)),
        )
        observation = observer.observe(processes_max_age_s=0.0)
        due = changes.due(observation, ())
        stands, differs = slot_by_slot(observation)
        expected = {
            container for key, container in differs.items() if stands[key] == stood.get(key)
        }
        assert due == expected
        for container in due:
            assert container.region is not None
            for process in node.slots(observation.snapshot).processes.values():
                before = changes.stood(container.region, process)
                assert before == {
                    (device, field): figure
                    for (path, pid, device, field), figure in stood.items()
                    if path == container.region_path and pid == process.pid
                    # Of a layout without utilisation the columns have 0.
                } | {key: 0 for key in before if key[1] != MEMORY and before[key] == 0}
        told += len(due)
        stood = stands
    assert told > 3


def test_written_figures_are_looked_at_again_when_they_or_their_process_change(
    scene: NodeScene,
    node: Node,
    start: Starter,
    nvml_sampler: NvmlSampler,
    fake_driver: FakeDriver,
) -> None:
    file, other = (scene.container(name, uuids=[GPU]) for name in "ab")
    process = start()
    pids = [process.child("spawn") for _ in range(2)]
    process.tell(f"@{pids[0][0]}", "attach", file.path)
    process.tell(f"@{pids[1][0]}", "attach", other.path)
    fake_driver.play(CARD)
    observer, changes = Observer(node, sampler=nvml_sampler), FigureChanges()
    written = {str(file.path)}

    def due() -> set[str | None]:
        return {each.region_path for each in changes.due(observer.observe(), written)}

    assert due() == due() == set(), "what the driver says stands there"
    for each in (file, other):
        each.put("slot_monitorused", 5 * MIB)
    assert due() == written, "it has moved; the other one is not the task's yet"
    assert due() == {str(each.path) for each in (file, other)}, "and is not what the driver says"
    for each in (file, other):
        each.put("slot_monitorused", 0)
    assert due() == written
    assert due() == set()
    for pid, _ in pids:
        process.tell("kill", pid)
    assert due() == written
    assert due() == set()


def test_a_process_with_slots_in_two_regions_and_a_device_named_twice_are_always_looked_at(
    scene: NodeScene,
    node: Node,
    start: Starter,
    nvml_sampler: NvmlSampler,
    fake_driver: FakeDriver,
) -> None:
    """They stand in no pair, or in one of two."""
    first, second = (scene.container(name, uuids=[GPU]) for name in "ab")
    twice = scene.container("c", uuids=[GPU, GPU])
    process = start()
    process.tell("attach", twice.path)
    both, _ = process.child("spawn")
    process.tell(f"@{both}", "attach", first.path)
    process.tell(f"@{both}", "attach", second.path)
    fake_driver.play(CARD)
    observer, changes = Observer(node, sampler=nvml_sampler), FigureChanges()
    for _ in range(2):
        found = {each.region_path for each in changes.due(observer.observe(), ())}
        assert str(twice.path) in found
        assert len(found & {str(first.path), str(second.path)}) == 1
