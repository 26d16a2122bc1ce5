"""Memory that the nodes of a graph allocate, and the limit."""

import pytest
from support.cuda_program import OUT, OUT_OF_MEMORY, SUCCESS, CudaProgram, packed

from libhamiregion.units import MIB

CONTEXT = 256 * MIB
DEVICE = 1
PER_THREAD = 2  # the default stream of the calling thread


def template_of(program: CudaProgram, size: int) -> int:
    """A graph with one node, which allocates."""
    graph: int = program.do("cuGraphCreate", OUT, 0)
    properties = packed("iiiiQQ56x", 1, 0, DEVICE, 0, 0, 0)
    wanted = properties + packed("QQQQ", 0, 0, size, 0).removeprefix("bytes:")
    program.do("cuGraphAddMemAllocNode", OUT, graph, None, 0, wanted)
    return graph


def graph_of(program: CudaProgram, size: int) -> int:
    """The same, executable."""
    graph = template_of(program, size)
    return program.do("cuGraphInstantiateWithFlags", OUT, graph, 0)


@pytest.mark.parametrize("launch", ["cuGraphLaunch", "cuGraphUpload", "cuGraphUpload_ptsz"])
def test_a_graph_whose_memory_would_pass_the_limit_is_not_launched(started, launch):
    scene, program = started()
    program.allocate(512 * MIB)
    executable = graph_of(program, 512 * MIB)
    assert program.call(launch, executable, 0)[0] == OUT_OF_MEMORY
    assert scene.used() == CONTEXT + 512 * MIB


@pytest.mark.parametrize("size", [128 * MIB, 512 * MIB])
def test_a_graph_that_is_uploaded_as_it_is_made_is_charged_before(started, size):
    scene, program = started()
    program.allocate(512 * MIB)
    graph = template_of(program, size)
    upload = packed("QQQi4x", 2, 0, 0, 0)
    code = program.call("cuGraphInstantiateWithParams", OUT, graph, upload)[0]
    fits = size < 256 * MIB
    assert code == (SUCCESS if fits else OUT_OF_MEMORY)
    assert scene.used() == CONTEXT + 512 * MIB + (size if fits else 0)


@pytest.mark.parametrize(
    ("allocate", "stream"), [("cuMemAllocAsync", PER_THREAD), ("cuMemAllocAsync_ptsz", 0)]
)
def test_what_a_stream_is_to_allocate_later_does_not_count_yet(started, allocate, stream):
    scene, program = started()
    program.do("cuStreamBeginCapture_v2", PER_THREAD, 0)
    program.do(allocate, OUT, 256 * MIB, stream)
    assert scene.used() == CONTEXT
    graph = program.do("cuStreamEndCapture", PER_THREAD, OUT)
    executable = program.do("cuGraphInstantiateWithFlags", OUT, graph, 0)
    program.do("cuGraphLaunch", executable, 0)
    assert scene.used() == CONTEXT + 256 * MIB


def test_what_a_graph_allocates_counts_from_its_launch_on(started):
    scene, program = started()
    executable = graph_of(program, 256 * MIB)
    assert scene.used() == CONTEXT
    assert program.call("cuGraphLaunch", executable, 0)[0] == SUCCESS
    assert scene.used() == CONTEXT + 256 * MIB
    assert program.call("cuMemAlloc_v2", OUT, 513 * MIB)[0] == OUT_OF_MEMORY
