"""What the library says to a program's users: little, whole lines, and why."""

from pathlib import Path

import pytest
from fake_cuda.driver import gpu_uuid
from support.cuda_program import OUT, CudaProgram
from support.limited import Limited

from libhamiregion.units import GIB

NOT_PERMITTED = 800
LONGEST_LINE = 320


def say(scene: Limited, path: Path, inject: str = "standin") -> str:
    """What a program says whose region is that file."""
    assert scene.inject == inject
    program = CudaProgram({**scene.environment(), "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(path)})
    program.do("cuInit", 0)
    assert program.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == NOT_PERMITTED
    return program.end()


def test_a_program_says_three_lines_at_most(limited, gpus, inject):
    devices = 4
    names = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
    rules = "".join(f"error {name} 3 *\n" for name in names)
    gpus.settings["FAKE_CUDA_DEVICES"] = str(devices)
    uuids = map(gpu_uuid, range(devices))
    scene = limited(sm=[20] * devices, uuids=uuids, inject=inject, nvml=rules)
    program = scene.program()
    for device in range(devices):
        program.start(device)
        kernel = program.kernel()
        program.do("cuLaunchKernel", kernel, *(1,) * 6, 0, None, None, None)
    said = program.end()
    lines = said.splitlines(keepends=True)
    assert len(lines) == 3
    assert all(line.startswith("libhamiregion: the SM limit of device ") for line in lines)
    assert lines[0].endswith("\n")


def test_a_long_line_is_cut_and_ends_as_a_line(limited, tmp_path):
    scene = limited(memory=[GIB])
    directory = tmp_path / ("d" * 200) / ("e" * 200)
    said = say(scene, directory / "region")
    assert said.startswith(f"libhamiregion: the region {tmp_path}/ddd")
    assert said.count("\n") == 1
    line = said.removesuffix("\n")
    assert f"libhamiregion: the region {directory}/region".startswith(line)
    assert LONGEST_LINE - 8 < len(said) <= LONGEST_LINE


def test_a_program_that_can_start_no_thread_says_so_and_goes_on(limited, c_programs):
    scene = limited(sm=[1, None])
    program = scene.program(LD_PRELOAD=str(c_programs / "libthreadless.so")).start()
    kernel = program.kernel()
    for _ in range(200):
        program.do("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    said = program.end()
    assert said.startswith("libhamiregion: no thread could be started: SM limits are not held")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"no region\n" * 1000, "it is not a region"), (b"", "it is still being made")],
)
def test_the_line_says_what_is_wrong_with_the_file(limited, tmp_path, content, why):
    path = tmp_path / "file"
    path.write_bytes(content)
    path.chmod(0o600)
    assert say(limited(memory=[GIB]), path) == (
        f"libhamiregion: the region {path} cannot be used: {why};"
        " CUDA contexts and memory are refused\n"
    )


@pytest.mark.parametrize("policy", ["open", "refuse"])
def test_beside_a_library_that_uses_the_region_nothing_is_counted_twice(
    limited, c_programs, inject, policy
):
    """As libvgpu.so does, in the same process: that one holds the limit."""
    scene = limited(memory=[GIB], inject=inject)
    environment = scene.environment(HAMIREGION_ON_ERROR=policy)
    before = environment.get("LD_PRELOAD", "")
    program = CudaProgram({**environment, "LD_PRELOAD": f"{c_programs / 'libtaking.so'} {before}"})
    program.start().allocate(2 * GIB)
    assert scene.region.snapshot().processes == ()
    said = program.end()
    assert said == (
        f"libhamiregion: the region {scene.path} cannot be used: another library in this process"
        " uses it already; nothing is limited\n"
    )
