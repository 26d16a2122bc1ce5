"""Why a container has no region: by its processes, the driver's lists, and its environment."""

import attrs
import pytest
from support.seen_node import GIB, GPU, HOST, ID, MIG, OTHER, OTHER_POD, POD, SHARE, entry, seen

from libhamiregion import RegionSet
from libhamiregion.node import NodeProcess, NvmlState, Observation, node_processes
from libhamiregion.observation.containers import (
    ELSEWHERE,
    MIG_DEVICE,
    MPS_CLIENT,
    NO_FILE,
    NOT_LIMITED,
    NOT_USED,
    SHARED_GPU,
    SWITCHED_OFF,
    UNREADABLE,
    WHOLE_GPU,
    Container,
    MissingRegion,
)
from libhamiregion.observation.json import from_json, to_json
from libhamiregion.observation.model import NodeSnapshot
from libhamiregion.observation.names import PodName
from libhamiregion.observation.processes import Entry, FileUser, HostProcess, Mapping
from libhamiregion.observation.share import Allocation, Share, share_of
from libhamiregion.observation.without_region import explained


def result(observation: Observation) -> tuple[Observation, list[MissingRegion | None]]:
    found = attrs.evolve(observation, snapshot=explained(observation))
    assert from_json(to_json(found)).missing == found.missing
    return found, [each.missing for each in found.missing]


def rows(observation: Observation) -> tuple[NodeProcess, ...]:
    return node_processes(result(observation)[0])


def mapped(path: str, nbytes: int) -> FileUser:
    process = HostProcess(2, 1, (2, 2), 0, "root", "python", ID)
    return FileUser(process, None, Mapping(1, 5, 0, nbytes, nbytes, True, path, False))


@pytest.mark.parametrize(
    ("users", "reason"),
    [
        pytest.param([entry(1, share=SHARE)], NOT_LIMITED, id="a share"),
        pytest.param([entry(1, share=SHARE, has_libvgpu=True)], NOT_LIMITED, id="no file made"),
        pytest.param(
            [entry(1, share=SHARE, uses=(mapped("/tmp/cudevshr.cache", 4096),))],
            ELSEWHERE,
            id="Koordinator",
        ),
        pytest.param(
            [entry(1, share=SHARE), entry(2, uses=(mapped("/tmp/cudevshr.cache", 4096),))],
            ELSEWHERE,
            id="another process of it maps a region",
        ),
        pytest.param(
            [entry(1, share=SHARE, is_readable=False, has_libvgpu=None)],
            UNREADABLE,
            id="maps refused",
        ),
        pytest.param(
            [entry(1, share=SHARE), entry(2, unread="blocked")], UNREADABLE, id="maps blocked"
        ),
        pytest.param([entry(1, share=Share(is_known=False))], UNREADABLE, id="no environment"),
        pytest.param([entry(1, share=None)], UNREADABLE, id="environment not read yet"),
        pytest.param(
            [entry(1, share=attrs.evolve(SHARE, is_switched_off=True))],
            SWITCHED_OFF,
            id="CUDA_DISABLE_CONTROL",
        ),
        pytest.param([entry(1)], WHOLE_GPU, id="no share"),
        pytest.param(
            [entry(1, share=Share((24 * GIB,), 100))], WHOLE_GPU, id="a share of a whole card"
        ),
        pytest.param([entry(1, share=Share((24 * GIB,), 50))], NOT_LIMITED, id="only SM"),
        pytest.param([entry(1, share=Share(uses_mps=True))], MPS_CLIENT, id="MPS"),
        pytest.param([entry(1, None)], NOT_USED, id="a display server"),
        pytest.param([entry(1, OTHER)], NOT_USED, id="another pod's"),
        pytest.param([], NO_FILE, id="a process that /proc does not show"),
    ],
)
def test_a_container_without_a_region_has_the_reason_that_is_proved(users, reason):
    assert result(seen(*users))[1][0] == reason


def test_a_mig_device_is_none_of_a_whole_gpu():
    assert result(seen(entry(1), uuid=MIG))[1] == [MIG_DEVICE]
    assert result(seen(entry(1, share=SHARE), uuid=MIG))[1] == [NOT_LIMITED]


def test_containers_of_one_gpu_share_it():
    found = result(seen(entry(1), entry(2, OTHER), listed=(1, 2)))
    assert found[1] == [SHARED_GPU, SHARED_GPU]


def test_nothing_is_said_without_the_drivers_lists():
    blind = seen(entry(1, share=SHARE), sample=None)
    assert result(blind)[1] == [NO_FILE]
    inside = attrs.evolve(HOST, is_own_namespace=False)
    view = attrs.evolve(seen(entry(1, share=SHARE)).processes, visibility=inside)
    assert result(seen(entry(1, share=SHARE), processes=view))[1] == [NO_FILE]


def test_a_process_that_began_after_the_sample_proves_nothing():
    late = attrs.evolve(entry(1, share=SHARE), start_time_ticks=100 * 100 + 1)
    assert result(seen(late))[1] == [NO_FILE]


def test_an_idle_container_is_not_known_to_be_idle_if_a_list_is_incomplete():
    whole = seen(entry(1, None))
    (card,) = whole.sample.devices
    cut = attrs.evolve(card, processes_state=NvmlState.INSUFFICIENT_SIZE)
    sample = attrs.evolve(whole.sample, devices=(cut,))
    assert result(whole)[1] == [NOT_USED]
    assert result(attrs.evolve(whole, sample=sample))[1] == [NO_FILE]


def test_a_container_that_has_no_directory_is_added_with_its_names():
    names = {ID.id: PodName("rag", "llm-0", "serve")}
    found, reasons = result(seen(entry(1, share=SHARE), directory=None, names=names))
    assert reasons == [NOT_LIMITED]
    (container,) = found.missing
    assert (container.namespace, container.pod, container.name) == ("rag", "llm-0", "serve")
    assert (container.pod_uid, container.container_id) == (POD, ID)


def test_of_two_containers_of_a_pod_the_name_decides():
    containers = [
        Container(POD, name, f"/c/{POD}_{name}", missing=NO_FILE) for name in ("main", "side")
    ]
    pod = NodeSnapshot((), tuple(containers), RegionSet().read(), 1.0)
    users = seen(entry(1, share=SHARE), snapshot=pod)
    assert result(users)[1] == [NO_FILE, NO_FILE]
    named = attrs.evolve(users, names={ID.id: PodName("rag", "llm-0", "side")})
    assert result(named)[1] == [NOT_USED, NOT_LIMITED]


def test_its_processes_have_escaped_and_those_of_a_whole_gpu_have_not():
    def state(user: Entry) -> tuple[str, str | None]:
        (row,) = rows(seen(user))
        return row.state, row.container and row.container.name

    assert state(entry(1, share=SHARE)) == ("escaped", "main")
    assert state(entry(1)) == ("unmanaged", "main")
    assert state(entry(1, None)) == ("unmanaged", None)


@pytest.mark.parametrize(
    ("variables", "share"),
    [
        ({}, Share()),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "2g"}, Share((2 * GIB,))),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "0", "CUDA_DEVICE_SM_LIMIT": "0"}, Share((), 0)),
        ({"CUDA_DEVICE_MEMORY_LIMIT_1": "-1m", "CUDA_DEVICE_SM_LIMIT": "x"}, Share()),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "9" * 40}, Share()),
        ({"CUDA_DISABLE_CONTROL": "false"}, Share()),
        ({"CUDA_DISABLE_CONTROL": "true"}, Share(is_switched_off=True)),
    ],
)
def test_shares_are_read_from_variables(variables, share):
    assert share_of(variables) == share


# ---- kubelet's checkpoint ------------------------------------------------------------------------


def given_to(container: str = "main", pod_uid: str = POD, **about: object) -> Allocation:
    facts = {"resource": "nvidia.com/gpu", "uuids": (GPU,), "share": Share(), **about}
    return Allocation(pod_uid, container, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "allocation", "reason"),
    [
        pytest.param(entry(1), given_to(share=SHARE), NOT_LIMITED, id="a share"),
        pytest.param(entry(1, share=SHARE), given_to(), WHOLE_GPU, id="none, but variables say so"),
        pytest.param(
            entry(1, share=Share(is_known=False)), given_to(share=SHARE), NOT_LIMITED, id="hidden"
        ),
        pytest.param(
            entry(1, share=Share(is_switched_off=True)),
            given_to(share=SHARE),
            SWITCHED_OFF,
            id="CUDA_DISABLE_CONTROL",
        ),
        pytest.param(
            entry(1, share=Share(uses_mps=True)), given_to(is_replica=True), MPS_CLIENT, id="MPS"
        ),
        pytest.param(entry(1, None), given_to(share=SHARE), NOT_USED, id="idle"),
        pytest.param(entry(1, None), given_to(), WHOLE_GPU, id="idle, with a whole GPU"),
        pytest.param(entry(1, None), given_to(uuids=(MIG,)), MIG_DEVICE, id="idle, with MIG"),
        pytest.param(entry(1), given_to(is_replica=True), WHOLE_GPU, id="a whole GPU of HAMi"),
        pytest.param(entry(1, share=SHARE), given_to("other"), NOT_LIMITED, id="another's"),
    ],
)
def test_the_checkpoint_is_asked_before_the_environment(user, allocation, reason):
    assert result(seen(user, allocations=(allocation,)))[1][0] == reason


def test_containers_that_have_no_directory_are_known_by_the_checkpoint():
    """Of pods that run: entries of others stay in it."""
    allocations = (
        given_to(is_replica=True),
        given_to(pod_uid=OTHER_POD, uuids=(MIG,)),
        given_to(pod_uid="2b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f"),
    )
    names = {f"{POD}/main": PodName("rag", "llm-0", "main"), ID.id: PodName("rag", "llm-0", "main")}
    about = {"directory": None, "allocations": allocations, "names": names}
    found, reasons = result(seen(entry(1), entry(2, OTHER), **about))  # type: ignore[arg-type]
    assert reasons == [SHARED_GPU, MIG_DEVICE]
    assert [each.pod for each in found.missing] == ["llm-0", None]
    idle = result(seen(entry(1), entry(2, OTHER), listed=(), **about))[0]  # type: ignore[arg-type]
    assert [(each.name, each.missing) for each in idle.missing] == [
        ("main", SHARED_GPU),
        ("main", MIG_DEVICE),
    ]


def test_the_checkpoint_holds_without_a_driver():
    blind = seen(entry(1), sample=None, allocations=(given_to(),))
    assert result(blind)[1] == [WHOLE_GPU]
    assert result(attrs.evolve(blind, allocations=(given_to(share=SHARE),)))[1] == [NO_FILE]
