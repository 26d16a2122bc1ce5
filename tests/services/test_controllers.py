"""Processes that are taken for HAMi's monitor."""

from support.agent_tasks import MONITOR, OtherWriter
from support.containers import containers, needs_namespaces

from libhamiregion.services.controllers import find_monitors


def test_a_monitor_that_was_listed_before_it_maps_a_region_is_found_at_the_next_refresh(
    scene, node
):
    file = scene.container("a")
    with OtherWriter(MONITOR) as monitor:
        node.refresh(processes=True)
        assert find_monitors(node.processes.view, node.containers) == ()
        monitor.map(file)
        node.refresh(processes=True)
        (found,) = find_monitors(node.processes.view, node.containers)
        assert (found.evidence, found.pid) == ("name", monitor.pid)


@needs_namespaces
def test_processes_of_the_containers_are_no_writers(scene, node):
    files = [scene.container("a"), scene.container("b")]
    with containers() as start:
        for file in files:
            inside = start()
            inside.tell("attach", file.path)
            pid, _ = inside.child("spawn")
            inside.tell(f"@{pid}", "map", file.path)
        for _ in range(3):
            node.refresh(processes=True)
            assert find_monitors(node.processes.view, node.containers) == ()
