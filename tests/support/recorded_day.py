"""A synthetic day of a node with eight GPUs, written by the recorder's own writer.

Everything is made from formulas, so that a test can say what a report of it must come to.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs

from libhamiregion.report import Allocation, Gpu, RecordingWriter, Sample
from libhamiregion.units import GIB, MIB

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
# 2026-10-01 00:00 UTC
MIDNIGHT_S = 1_790_812_800
# The recorder was down.
GAP_S = (3 * HOUR_S + 600, 3 * HOUR_S + 3_000)
GPUS = tuple(
    f"GPU-{number}a7c4e1{number}-5d21-4b6e-9f03-8c1d2e3f4a5{number}" for number in range(8)
)

MODEL = "NVIDIA A100-SXM4-80GB"
DEVICES = {uuid: Gpu(MODEL, 80 * GIB) for uuid in GPUS}


@attrs.frozen
class Moment:
    """What an allocation shows at one time."""

    used_bytes: int
    sm_percent: int
    processes: int = 1


Behaviour = Callable[[int, random.Random], Moment]


@attrs.frozen
class Tenant:
    """A container on one device, and how it behaves over the day."""

    namespace: str
    pod: str
    container: str
    gpu: int
    limit_bytes: int | None
    sm_limit: int | None
    behaviour: Behaviour
    from_s: int = 0
    to_s: int = DAY_S

    @property
    def allocation(self) -> Allocation:
        uid = f"uid-of-{self.pod}"
        return Allocation(self.namespace, self.pod, self.container, uid, 0, GPUS[self.gpu])


def unused(_: int, __: random.Random) -> Moment:
    return Moment(0, 0, 0)


def training(nbytes: int, sm: int) -> Behaviour:
    def at(second: int, dice: random.Random) -> Moment:
        if second < 90:
            return Moment(nbytes // 3, 5)
        checkpoint = second % 2_400 < 90
        return Moment(nbytes, 4 if checkpoint else min(100, max(0, sm + dice.randrange(-12, 9))))

    return at


def serving(base_gib: int, swing_gib: int, sm: int) -> Behaviour:
    def at(second: int, dice: random.Random) -> Moment:
        # Busiest at 14:00.
        load = 0.5 - 0.5 * math.cos(2 * math.pi * (second - 2 * HOUR_S) / DAY_S)
        swing = swing_gib * GIB * load * (0.85 + 0.15 * dice.random())
        used = base_gib * GIB + int(swing) // (64 * MIB) * (64 * MIB)
        return Moment(used, int(sm * load * dice.uniform(0.6, 1.0)), 2)

    return at


def notebook(nbytes: int, sessions: tuple[tuple[int, int], ...]) -> Behaviour:
    def at(second: int, dice: random.Random) -> Moment:
        for start, end in sessions:
            if start <= second < end:
                busy = (second - start) % 1_800 < 240
                return Moment(nbytes, dice.randrange(20, 80) if busy else 0)
        return Moment(0, 0, 0)

    return at


def leaking(second: int, _: random.Random) -> Moment:
    if second < 9 * HOUR_S:
        return Moment(6 * GIB, 35)
    # Its process was killed, and its memory counts on.
    return Moment(6 * GIB, 0, 0)


def growing(second: int, dice: random.Random) -> Moment:
    used = 2 * GIB + int(13.6 * GIB * second / DAY_S) // (32 * MIB) * (32 * MIB)
    return Moment(used, dice.randrange(30, 60))


def tenants() -> list[Tenant]:
    """Everybody of that day, with names of their own."""
    research, inference, notebooks, batch = "research", "inference", "notebooks", "batch"
    sessions = {
        "ada": (9, 12), "grace": (10, 18), "kurt": (13, 14), "emmy": None, "alan": (20, 23),
        "sofia": None, "hedy": (8, 11), "claude": (15, 17),
    }  # fmt: skip
    found = [
        Tenant(research, "llm-pretrain-0", "train", 0, 72 * GIB, None, training(61 * GIB, 92)),
        Tenant(research, "llm-pretrain-1", "train", 1, 72 * GIB, None, training(61 * GIB, 92)),
        Tenant(research, "bert-sweep-7d9f4", "train", 2, 32 * GIB, 50, training(11 * GIB, 46)),
        Tenant(research, "vision-ablation", "train", 2, 32 * GIB, 50, unused),
        Tenant(research, "graph-nets-2", "train", 3, 24 * GIB, 30, leaking),
        Tenant(research, "tabular-rnn", "fit", 3, 16 * GIB, 30, growing),
        Tenant(inference, "chat-6c8b5f7d9-x2v4k", "vllm", 4, 64 * GIB, 80, serving(46, 14, 75)),
        Tenant(inference, "embed-55d7c9f4b-q8t2m", "server", 5, 16 * GIB, 40, serving(3, 2, 30)),
        Tenant(inference, "rerank-7f5d8c6b9-m4n7p", "server", 5, 16 * GIB, 20, serving(2, 1, 12)),
        Tenant(inference, "asr-5b9d7c4f8-k2j6h", "triton", 5, 24 * GIB, 40, serving(7, 9, 38)),
        Tenant(inference, "canary-84c7d9f5b-z3x8w", "vllm", 6, 40 * GIB, 50, unused),
        Tenant(batch, "legacy-etl", "job", 3, None, None, serving(1, 3, 20)),
    ]
    for number, (person, hours) in enumerate(sessions.items()):
        times = () if hours is None else ((hours[0] * HOUR_S, hours[1] * HOUR_S),)
        used = notebook((2 + number % 4) * GIB + 300 * MIB, times)
        gpu = 6 + number % 2
        found.append(Tenant(notebooks, f"jupyter-{person}", "notebook", gpu, 8 * GIB, 25, used))
    for number in range(9):
        start = (2 * number + 1) * HOUR_S + 137 * number
        end = start + 5_400 + 300 * number
        used = training((9 + number) * GIB, 48)
        found.append(Tenant(batch, f"render-{number:02}", "job", 7, 20 * GIB, 50, used, start, end))
    return found


def looks(
    which: Iterable[Tenant], *, interval_s: int = 15, until_s: int = DAY_S
) -> Iterator[tuple[int, dict[Allocation, Sample]]]:
    """Each look of the day, without those of the gap: (second, samples)."""
    chosen = [(tenant, tenant.allocation, random.Random(tenant.pod)) for tenant in which]
    for second in range(0, until_s, interval_s):
        if GAP_S[0] <= second < GAP_S[1]:
            continue
        samples = {}
        for tenant, allocation, dice in chosen:
            if tenant.from_s <= second < tenant.to_s:
                moment = tenant.behaviour(second - tenant.from_s, dice)
                samples[allocation] = Sample(
                    moment.used_bytes,
                    tenant.limit_bytes,
                    tenant.sm_limit or 100,
                    moment.sm_percent,
                    moment.processes,
                )
        yield second, samples


def record(
    path: Path,
    which: Iterable[Tenant],
    *,
    interval_s: int = 15,
    until_s: int = DAY_S,
    node: str = "gpu-node-07",
) -> None:
    """Write the day into a recording."""
    with RecordingWriter(path, interval_s=interval_s, node=node) as writer:
        for second, samples in looks(which, interval_s=interval_s, until_s=until_s):
            writer.write(samples, at_ms=(MIDNIGHT_S + second) * 1000, devices=DEVICES)
