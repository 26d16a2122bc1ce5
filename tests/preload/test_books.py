"""A random sequence of driver calls is counted as a model of the books counts it.

Without managed memory and pools: what a context takes is the driver's figure less what was
allocated, and of those the driver itself decides what is on the device.
"""

import random
from dataclasses import dataclass, field

import pytest
from support.cuda_program import OUT, OUT_OF_MEMORY, SUCCESS, CudaProgram, packed
from support.limited import Limited
from support.stress import scaled

from libhamiregion.units import GIB, MIB

CONTEXT = 256 * MIB
LIMIT = 4 * GIB
PRIMARY = 0
GRANULE = 2 * MIB


@dataclass
class Allocation:
    """What was allocated: how it is freed, what it counts, the context that it ends with."""

    free: tuple[object, ...]
    size: int
    context: int | None


@dataclass
class Books:
    """What the region should say of a program, beside the program that is told to do it."""

    program: CudaProgram
    chance: random.Random
    limit: int = LIMIT
    allocations: list[Allocation] = field(default_factory=list)
    contexts: list[int] = field(default_factory=lambda: [PRIMARY])
    current: int = PRIMARY

    @property
    def used(self) -> int:
        return len(self.contexts) * CONTEXT + sum(each.size for each in self.allocations)

    def size(self) -> int:
        return self.chance.choice((1, 511, 4096, MIB, 3 * MIB + 7, 200 * MIB, GIB))

    def add(
        self, call: tuple[object, ...], size: int, free: str, *, outlives: bool = False
    ) -> None:
        """Allocate; it is refused if and only if it would pass the limit."""
        code, *outs = self.program.call(*call)
        assert code == (OUT_OF_MEMORY if self.used + size > self.limit else SUCCESS), call
        if code == SUCCESS:
            context = None if outlives else self.current
            self.allocations.append(Allocation((free, outs[0]), size, context))

    # ---- steps ----

    def linear(self) -> None:
        size = self.size()
        self.add(("cuMemAlloc_v2", OUT, size), size, "cuMemFree_v2")

    def pitched(self) -> None:
        rows = self.chance.randrange(1, 100_000)
        self.add(("cuMemAllocPitch_v2", OUT, OUT, 700, rows, 4), 1024 * rows, "cuMemFree_v2")

    def array(self) -> None:
        height = self.chance.randrange(1, 30_000)
        descriptor = packed("QQQiII", 1024, height, 0, 0x20, 1, 0)
        self.add(("cuArray3DCreate_v2", OUT, descriptor), 4096 * height, "cuArrayDestroy")

    def physical(self) -> None:
        size = GRANULE * self.chance.randrange(1, 300)
        properties = packed("iiiiQQ", 1, 0, 1, 0, 0, 0)
        call = ("cuMemCreate", OUT, size, properties, 0)
        self.add(call, size, "cuMemRelease", outlives=True)

    def free(self) -> None:
        if self.allocations:
            gone = self.allocations.pop(self.chance.randrange(len(self.allocations)))
            self.program.do(*gone.free)

    def free_nothing(self) -> None:
        assert self.program.call("cuMemFree_v2", 12345)[0] != SUCCESS

    def create_context(self) -> None:
        if len(self.contexts) < 4 and self.used + CONTEXT <= self.limit:
            self.contexts.append(self.program.do("cuCtxCreate_v2", OUT, 0, 0))
            self.current = self.contexts[-1]
            # It stands on top of the one that was current, and takes its place.
            self.program.do("cuCtxPopCurrent_v2", OUT)
            self.program.do("cuCtxSetCurrent", self.current)

    def choose_context(self) -> None:
        self.current = self.chance.choice(self.contexts)
        self.program.do("cuCtxSetCurrent", self.handle(self.current))

    def handle(self, context: int) -> int:
        if context != PRIMARY:
            return context
        handle: int = self.program.do("cuDevicePrimaryCtxRetain", OUT, 0)
        self.program.do("cuDevicePrimaryCtxRelease_v2", 0)
        return handle

    def end_context(self) -> None:
        """Destroy a context, or reset the primary one, which is retained again at once."""
        context = self.chance.choice(self.contexts)
        self.allocations = [each for each in self.allocations if each.context != context]
        if context == PRIMARY:
            self.program.do("cuDevicePrimaryCtxReset_v2", 0)
            self.program.do("cuCtxSetCurrent", self.program.do("cuDevicePrimaryCtxRetain", OUT, 0))
            self.current = PRIMARY
            return
        self.program.do("cuCtxDestroy_v2", context)
        self.contexts.remove(context)
        self.current = PRIMARY
        self.program.do("cuCtxSetCurrent", self.handle(PRIMARY))

    def step(self) -> None:
        makers = (self.linear, self.pitched, self.array, self.physical)
        others = (self.free_nothing, self.create_context, self.choose_context, self.end_context)
        steps = (*makers * 3, *(self.free,) * 14, *others)
        self.chance.choice(steps)()


def run(scene: Limited, seed: int, steps: int) -> None:
    books = Books(scene.program().start(), random.Random(seed))
    for number in range(steps):
        books.step()
        assert scene.used() == books.used, f"seed {seed}, step {number}"
    assert books.program.info() == (max(0, LIMIT - books.used), LIMIT)


@pytest.mark.parametrize("seed", range(2))
def test_the_region_counts_what_the_model_counts(limited, seed, inject):
    run(limited(memory=[LIMIT], inject=inject), seed, 400)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 100 + scaled(40)))
def test_the_region_counts_what_the_model_counts_for_long(limited, seed):
    run(limited(memory=[LIMIT]), seed, 5000)
