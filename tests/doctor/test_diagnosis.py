"""Each scene of the table: what is found, what a repair mends, and what it leaves alone."""

import pytest
import support.doctor_scenes  # noqa: F401 (fills the table)
from support.containers import needs_namespaces
from support.doctor_scene_table import SCENES, Expected
from support.node_scene import SceneContainer
from support.region_file import unchanged

from libhamiregion.doctor import Finding, FindingKind, diagnose
from libhamiregion.doctor.repairs import ORDER
from libhamiregion.node import Observer
from libhamiregion.observation.json import from_json, to_json

pytestmark = needs_namespaces

# What takes a driver, cgroups, processes at work, or a node that cannot be observed.
WITH_TESTS_OF_THEIR_OWN = {
    FindingKind.DEVICES_REORDERED,
    FindingKind.DIRECTORY_BORROWED,
    FindingKind.DRIVER_MEMORY_DIFFERS,
    FindingKind.FIGURE_IMPOSSIBLE,
    FindingKind.GPU_FAILED,
    FindingKind.GPU_OVERCOMMITTED,
    FindingKind.MIG_APPLY_STUCK,
    FindingKind.NOT_OBSERVED,
    FindingKind.PROCESS_ESCAPES,
    FindingKind.PROCESS_GONE,
    FindingKind.REGIONS_DOUBLED,
    FindingKind.SHARE_NOT_LIMITED,
    FindingKind.UTILIZATION_NOT_RECORDED,
}


def compared(found: Finding, expected: Expected, places: list[SceneContainer]) -> Expected:
    """The finding, as far as the scene says anything of it."""
    read = f"{found.summary}\n{found.paragraph}"
    for place in places:
        if found.pid in place.true_host_pids:
            read = read.replace(str(place.true_host_pids[found.pid]), "HOST_PID")
    return Expected(
        found.kind,
        found.cause if expected.cause is not None else None,
        found.severity if expected.severity is not None else None,
        found.pid if expected.pid is not None else None,
        found.device if expected.device is not None else None,
        tuple(words for words in expected.says if words in read),
    )


# By live processes, or such as may live: they may be right in the middle of it.
PASSING = {"live_writer", "unknown_writer", "ownerless", "live_owner", "unknown_owner"}
# Of the variants of a scene, whose names have its own before the first comma.
FIRST = {name.partition(",")[0]: name for name in reversed(SCENES)}.values()


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in FIRST else pytest.mark.slow) for each in SCENES],
)
def test_a_scene_is_found_and_mended_or_left_alone(name, doctor_node):
    scene = SCENES[name]
    scene.make(doctor_node)
    found = doctor_node.undisturbed_findings()
    assert [each.kind for each in found] == [each.kind for each in scene.found], found
    assert all(each.is_transient for each in found if each.cause in PASSING)
    seen = Observer.for_command(doctor_node.node).observe()
    redacted = from_json(to_json(seen, redact=True))
    assert [each.kind for each in diagnose(redacted)] == [each.kind for each in diagnose(seen)]
    places = doctor_node.containers
    assert scene.found == tuple(
        compared(each, expected, places) for each, expected in zip(found, scene.found, strict=True)
    )
    uids = {place.pod_uid for place in places}
    assert {each.container.pod_uid for each in found if each.container is not None} <= uids
    if scene.mended is None:
        with unchanged(doctor_node):
            assert [each for each in found if each.repairable] == []
            assert doctor_node.repair() == ()
        if not scene.found:
            # Nor does anything seem wrong to who looks once.
            assert doctor_node.findings(settle_s=0) == ()
    else:
        assert all(each.repairable for each in found)
        done = doctor_node.repair()
        # The lock first: what else is wrong may be mended under it.
        in_turn = sorted((each.kind for each in found), key=[*ORDER].index)
        assert [each.finding.kind for each in done] == in_turn
        assert all(each.done and each.error is None and each.actions for each in done), done
        said = "\n".join(action for each in done for action in each.actions)
        assert [words for words in scene.mended if words not in said] == [], said
        assert doctor_node.findings() == ()
        for place in places:
            stored = place.host_pids()
            assert {pid: stored[pid] for pid in place.true_host_pids} == place.true_host_pids
    if scene.used is not None:
        assert places[0].used() == scene.used


def test_every_kind_of_finding_is_in_a_scene():
    found = {expected.kind for scene in SCENES.values() for expected in scene.found}
    assert found | WITH_TESTS_OF_THEIR_OWN == set(FindingKind)
    assert not found & WITH_TESTS_OF_THEIR_OWN
