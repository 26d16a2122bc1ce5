"""Physical memory, its handles and its mappings, in a random order, against a model of them."""

import random
from dataclasses import dataclass, field

import pytest
from support.cuda_program import INVALID_VALUE, OUT, OUT_OF_MEMORY, SUCCESS, CudaProgram, packed

from libhamiregion.units import GIB, MIB

CONTEXT = 256 * MIB
GRANULE = 2 * MIB
LIMIT = 8 * GIB
PROPERTIES = packed("iiiiQQ", 1, 0, 1, 0, 0, 0)


@dataclass
class Memory:
    """One piece: it is there for as long as its handle or a mapping needs it."""

    size: int
    handle: int
    is_held: bool = True
    mapped: dict[int, int] = field(default_factory=dict)
    """Sizes of its mappings, by address."""

    @property
    def is_there(self) -> bool:
        return self.is_held or bool(self.mapped)


class Physical:
    """A program that is told what to do, and what it should have then."""

    def __init__(self, program: CudaProgram, seed: int) -> None:
        self.program = program
        self.chance = random.Random(seed)
        self.memories: list[Memory] = []
        # All mappings lie one behind the other, so that several can go at once.
        self.room = program.do("cuMemAddressReserve", OUT, GIB, 0, 0, 0)
        self.free = [self.room + at for at in range(0, GIB, GRANULE)]

    @property
    def used(self) -> int:
        return CONTEXT + sum(each.size for each in self.memories)

    def create(self) -> None:
        size = GRANULE * self.chance.choice((1, 2, 3, 40))
        code, handle = self.program.call("cuMemCreate", OUT, size, PROPERTIES, 0)
        assert code == (SUCCESS if self.used + size <= LIMIT else OUT_OF_MEMORY)
        if code == SUCCESS:
            self.memories.append(Memory(size, handle))

    def map(self) -> None:
        usable = [each for each in self.memories if each.is_held]
        if not usable:
            return
        memory = self.chance.choice(usable)
        offset = self.chance.randrange(0, memory.size, GRANULE)
        address = self.free.pop(self.chance.randrange(len(self.free)))
        # Behind the end of the memory there is nothing to map.
        beyond = memory.size - offset + GRANULE
        call = ("cuMemMap", address, beyond, offset, memory.handle, 0)
        assert self.program.call(*call)[0] == INVALID_VALUE
        self.program.do("cuMemMap", address, GRANULE, offset, memory.handle, 0)
        memory.mapped[address] = GRANULE

    def unmap(self) -> None:
        mapped = {address for each in self.memories for address in each.mapped}
        if not mapped:
            assert self.program.call("cuMemUnmap", self.room, GRANULE)[0] == INVALID_VALUE
            return
        first = last = self.chance.choice(sorted(mapped))
        while last + GRANULE in mapped and self.chance.random() < 0.7:
            last += GRANULE
        gone = range(first, last + GRANULE, GRANULE)
        self.program.do("cuMemUnmap", first, len(gone) * GRANULE)
        for address in gone:
            self.free.append(address)
            for each in self.memories:
                each.mapped.pop(address, None)

    def release(self) -> None:
        held = [each for each in self.memories if each.is_held]
        if held:
            memory = self.chance.choice(held)
            self.program.do("cuMemRelease", memory.handle)
            memory.is_held = False

    def step(self) -> None:
        steps = (self.create, self.map, self.map, self.unmap, self.release)
        self.chance.choice((*steps, self.release))()
        self.memories = [each for each in self.memories if each.is_there]

    def end(self) -> None:
        """Let go of all, the handles of what is mapped first."""
        for each in self.memories:
            if each.is_held:
                self.program.do("cuMemRelease", each.handle)
            each.is_held = False
            for address, size in each.mapped.items():
                self.program.do("cuMemUnmap", address, size)


@pytest.mark.parametrize("seed", range(2))
def test_the_region_counts_what_is_held_or_mapped(limited, seed):
    scene = limited(memory=[LIMIT])
    physical = Physical(scene.program().start(), seed)
    for number in range(500):
        physical.step()
        assert scene.used() == physical.used, f"seed {seed}, step {number}"
    physical.end()
    assert scene.used() == CONTEXT


def test_more_pieces_than_were_expected_each_count(started):
    """The list of them grows, and what was freed in the middle is used again."""
    scene, program = started(LIMIT)
    create = ("cuMemCreate", OUT, GRANULE, PROPERTIES, 0)
    handles = [program.do(*create) for _ in range(300)]
    assert scene.used() == CONTEXT + 300 * GRANULE
    for handle in handles[::3]:
        program.do("cuMemRelease", handle)
    assert scene.used() == CONTEXT + 200 * GRANULE
    handles = [*handles[1::3], *handles[2::3], *(program.do(*create) for _ in range(200))]
    assert scene.used() == CONTEXT + 400 * GRANULE
    for handle in handles:
        program.do("cuMemRelease", handle)
    assert scene.used() == CONTEXT
