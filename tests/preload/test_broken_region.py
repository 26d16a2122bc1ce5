"""A program whose region is missing, or breaks while it runs."""

from collections.abc import Callable

import pytest
from cuda_program import OUT, OUT_OF_MEMORY, SUCCESS
from fake_cuda.driver import GIB, MIB
from limited import Limited
from region_bytes import truncate

NOT_PERMITTED = 800
REFUSED = "CUDA contexts and memory are refused"
FREE = "nothing is limited"

Make = Callable[..., Limited]


def policy(name: str | None) -> dict[str, str]:
    return {} if name is None else {"HAMIREGION_ON_ERROR": name}


@pytest.mark.parametrize(
    ("name", "code", "effect"),
    [(None, NOT_PERMITTED, REFUSED), ("refuse", NOT_PERMITTED, REFUSED), ("open", SUCCESS, FREE)],
)
def test_without_a_region_the_policy_decides_about_contexts(
    limited: Make, inject: str, name: str | None, code: int, effect: str
) -> None:
    scene = limited(memory=[GIB], inject=inject)
    scene.path.unlink()
    program = scene.program(**policy(name))
    program.do("cuInit", 0)
    assert program.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == code
    status, said = program.end()
    assert status == 0
    assert said.startswith(f"libhamiregion: the region {scene.path} cannot be used: there is no")
    assert said.endswith(f"; {effect}\n")


@pytest.mark.parametrize(
    ("name", "code", "effect"),
    [(None, SUCCESS, FREE), ("refuse", NOT_PERMITTED, REFUSED), ("open", SUCCESS, FREE)],
)
def test_a_region_that_is_truncated_later_ends_no_program(
    limited: Make, inject: str, name: str | None, code: int, effect: str
) -> None:
    scene = limited(memory=[GIB], inject=inject)
    program = scene.program(**policy(name)).start()
    assert program.call("cuMemAlloc_v2", OUT, 2 * GIB)[0] == OUT_OF_MEMORY
    truncate(scene.path, 4096)
    for _ in range(5):
        assert program.call("cuMemAlloc_v2", OUT, MIB)[0] == code
    status, said = program.end()
    assert status == 0
    assert said.count("\n") == 1
    assert said.endswith(f": it was truncated or replaced; {effect}\n")
