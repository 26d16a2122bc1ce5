"""The first minutes on a real GPU: ``python tests/gpu/first_contact.py``, under ten of them.

Prints a verdict for each step, with what was measured; the exit status is 1 if one has failed.
Saves the verdicts and what NVML has answered about a square wave of work in a JSON file (--trace),
with which the models of the control law hold limits here, and elsewhere by --replay FILE.
Needs this package, an NVIDIA driver, make and a C compiler; nvidia-smi, MPS and PyTorch are used
where they are. ``--driver DIR`` runs the same steps on the fake driver, to test this script.

The trace: ``steps`` are [name, verdict, text]. ``waves`` has one wave for each number of processes:
``pids``; ``light``, the pid of one that works for 0.2 %; ``events``, [seconds, whether they work];
and ``answers``, one for each question to NVML: [seconds, seconds before that from which samples
were wanted, seconds that it took, percent of the GPU, [[pid, stamp in microseconds, percent],
...]]. All times are Unix time.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

import libhamiregion as hami
from libhamiregion.run import environment

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "preload")]

from fake_cuda.driver import stop  # noqa: E402
from support.cuda_program import OUT, OUT_OF_MEMORY, CudaProgram, room  # noqa: E402
from support.law_model import nvml_of, replay  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
LIMIT = 2 * GIB
# Other work comes and goes on a busy machine: what keeps to the limit does so in one of these.
TRIES = 5
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"

HOOKS = TESTS.parent / "csrc/preload/hooks.h"
VERSIONS = (11000, 11020, 11040, 12000, 12040, 13000)
# How long before a question the samples may have been taken that it wants.
SINCE_S = (0.1, 0.5, 1, 2)
QUESTION_S = 0.05

# Allocates until memory is refused, in a process of its own: `ALLOCATOR` is in its environment.
TORCH = """
import json, torch
held = []
try:
    while True:
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
free, total = torch.cuda.mem_get_info()
print(json.dumps([len(held) * (64 << 20), free, total]))
"""

# Opens the driver by its name without a version, as numba does.
PLAIN = """
import ctypes
cuda, total = ctypes.CDLL("libcuda.so"), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value)
"""

# Sums one tensor over two GPUs, for ten seconds.
NCCL = """
import os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("nccl", rank=rank, world_size=2)
    tensor = torch.ones(1 << 20, device=f"cuda:{rank}")
    dist.all_reduce(tensor)
    assert tensor.sum().item() == 2 << 20
    rounds, end = 0, time.monotonic() + 10
    while time.monotonic() < end:
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        rounds += 1
    if rank == 0:
        print(rounds)
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


# Multiplies on the GPU until it is killed.
GEMM = """
import torch
matrix = torch.rand(4096, 4096, device="cuda")
print("started", flush=True)
while True:
    for _ in range(20):
        matrix @ matrix
    torch.cuda.synchronize()
"""

# The fake driver reads from a name how long a kernel takes; a real GPU runs the second one until
# the third one runs, for a minute at most.
KERNELS = """.version 6.0
.target sm_50
.address_size 64
.global .u32 flag;
.visible .entry busy_100us() {
.reg .u64 %now, %end;
.reg .pred %more;
mov.u64 %now, %globaltimer;
add.u64 %end, %now, 100000;
AGAIN:
mov.u64 %now, %globaltimer;
setp.lt.u64 %more, %now, %end;
@%more bra AGAIN;
ret;
}
.visible .entry busy_8000ms() {
.reg .u32 %seen;
.reg .u64 %now, %end;
.reg .pred %more;
mov.u64 %now, %globaltimer;
add.u64 %end, %now, 60000000000;
AGAIN:
ld.volatile.global.u32 %seen, [flag];
mov.u64 %now, %globaltimer;
setp.lt.u64 %more, %now, %end;
setp.eq.and.u32 %more, %seen, 0, %more;
@%more bra AGAIN;
st.volatile.global.u32 [flag], 0;
ret;
}
.visible .entry release() {
st.volatile.global.u32 [flag], 1;
ret;
}
"""
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


class Skipped(Exception):
    """A check that this machine cannot make."""


class Checks:
    """The checks, on the first GPU."""

    def __init__(self, driver: Path | None, seconds: float, least: float) -> None:
        self.driver = driver
        self.seconds = seconds
        self.least = least
        self.waves: list[dict[str, Any]] = []
        self.place = Path(tempfile.mkdtemp(prefix="hamiregion-gpu-"))
        self.programs: list[CudaProgram] = []
        self.addresses_of: dict[CudaProgram, dict[int, set[str]]] = {}

    def close(self) -> None:
        for program in self.programs:
            program.kill()
        shutil.rmtree(self.place)

    @contextlib.contextmanager
    def limited(
        self, memory: int | None = LIMIT, sm: int | None = None
    ) -> Iterator[tuple[dict[str, str], hami.Region]]:
        """The environment of programs with a limit, and their region."""
        with (
            environment(memory_limit=memory, sm_limit=sm, driver=self.driver) as env,
            hami.open_region(env[REGION], writable=True) as region,
        ):
            yield env, region

    def bare(self) -> dict[str, str]:
        return self.with_driver(dict(os.environ))

    def with_driver(self, env: dict[str, str]) -> dict[str, str]:
        if self.driver is not None:
            env["LD_LIBRARY_PATH"] = f"{self.driver}:{env.get('LD_LIBRARY_PATH', '')}"
        return env

    def program(self, env: dict[str, str]) -> CudaProgram:
        self.programs.append(CudaProgram(env))
        return self.programs[-1]

    def built(self, name: str) -> str:
        """A C program of tests/preload, linked with this machine's driver."""
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise Skipped("no C compiler")
        path = self.place / name
        if not path.exists():
            source = str(TESTS / "preload" / f"{name}.c")
            library = f"{self.driver}/libcuda.so.1" if self.driver else "-l:libcuda.so.1"
            command = [compiler, "-std=gnu11", "-O2", "-pthread", "-o", str(path), source, library]
            subprocess.run(command, check=True)
        return str(path)

    # ---- checks: each returns what it has seen ----

    def addresses(self) -> str:
        """cuGetProcAddress gives a hook where the driver gives its function, and only there."""
        if not HOOKS.is_file():
            raise Skipped("needs the C sources")
        symbols = exported_hooks(HOOKS.read_text(encoding="utf-8"))
        names = sorted({re.sub(r"(_v\d)?(_ptsz)?$", "", symbol) for symbol in symbols})
        questions = [
            ("cuGetProcAddress_v2", f"text:{name}", OUT, version, flags, OUT)
            for name in names
            for version in VERSIONS
            for flags in (0, 1, 2)
        ]
        with self.limited() as (env, _):
            bare, ours = (
                [self.known(program, symbols, answer) for answer in program.calls(*questions)]
                for program in (self.program(self.bare()), self.program(env))
            )
        for question, theirs, mine in zip(questions, bare, ours, strict=True):
            assert (mine is None) == (theirs is None), question
            assert mine is None or theirs is None or mine & theirs or not (mine | theirs), question
        return f"{len(questions)} answers"

    def known(self, program: CudaProgram, symbols: list[str], answer: list[Any]) -> set[str] | None:
        """The symbols with the address in an answer; None if there is no such function."""
        if program not in self.addresses_of:
            found: dict[int, set[str]] = {}
            calls = [("symbol", symbol) for symbol in symbols]
            for symbol, (code, address) in zip(symbols, program.calls(*calls), strict=True):
                if code == 0 and address:
                    found.setdefault(address, set()).add(symbol)
            self.addresses_of[program] = found
        code, address, _ = answer
        return None if code or not address else self.addresses_of[program].get(address, set())

    def context_size(self) -> str:
        """A context counts what the GPU's own figure grows by, within 20 % and 32 MiB."""
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        before = pynvml.nvmlDeviceGetMemoryInfo(device).used
        bare = self.program(self.bare()).start()
        grown = pynvml.nvmlDeviceGetMemoryInfo(device).used - before
        bare.kill()
        with self.limited() as (env, region):
            self.program(env).start()
            counted = region.snapshot().devices[0].memory_used_bytes
        seen = f"the GPU's figure grows by {grown >> 20} MiB, counted {counted >> 20}"
        assert abs(counted - grown) <= 0.2 * grown + 32 * MIB, seen
        return seen

    def sampling(self, processes: int) -> str:
        """NVML's answers about a square wave of work: its lag, its stamps, and what it costs."""
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        command = [self.built("busy"), "kernel", "busy_1ms", "1", "20", "0"]
        events: list[tuple[float, bool]] = []
        answers: list[Any] = []
        with contextlib.ExitStack() as stack:
            programs = [
                stack.enter_context(
                    subprocess.Popen(command, env=self.bare(), stdout=subprocess.PIPE, text=True)
                )
                for _ in range(processes)
            ]
            for program in programs:
                program.stdout.readline()
                stop(program.pid, Path(os.environ.get("FAKE_CUDA_STATE", "")))
            light = self.program(self.bare()).start()
            (work_a_little,) = launches(light, "busy_100us")
            for half in range(6):
                events.append((time.time(), half % 2 == 0))
                for program in programs:
                    if half % 2 == 0:
                        program.send_signal(signal.SIGCONT)
                    else:
                        stop(program.pid, Path(os.environ.get("FAKE_CUDA_STATE", "")))
                self.ask_about_work(device, answers, work_a_little)
            for program in programs:
                program.kill()
        pids = [program.pid for program in programs]
        wave = {"pids": pids, "light": light.pid, "events": events, "answers": answers}
        self.waves.append(wave)
        light.kill()
        cost_ms = statistics.median(answer[2] for answer in answers) * 1000
        shown = [at for at, *_, listed in answers if any(percent for *_, percent in listed)]
        assert shown, "NVML shows no process at work"
        lag = shown[0] - events[0][0]
        listed = {pid for answer in answers for pid, *_ in answer[4]}
        return (
            f"seen after {lag:.2f} s, {nvml_of(wave)}, {cost_ms:.1f} ms a question, "
            f"{len(listed & set(pids))} of {processes} by their own pids, "
            f"one of 0.2 % {'too' if light.pid in listed else 'never'}"
        )

    def ask_about_work(
        self, device: Any, answers: list[Any], work_a_little: Callable[..., None]
    ) -> None:
        deadline = time.monotonic() + self.seconds / 4
        while time.monotonic() < deadline:
            work_a_little()
            for since_s in SINCE_S:
                at_s = time.time()
                try:
                    samples = pynvml.nvmlDeviceGetProcessUtilization(
                        device, int((at_s - since_s) * 1e6)
                    )
                except pynvml.NVMLError_NotFound:
                    samples = []
                took_s = time.time() - at_s
                listed = [[each.pid, each.timeStamp, each.smUtil] for each in samples]
                busy = pynvml.nvmlDeviceGetUtilizationRates(device).gpu
                answers.append([at_s, since_s, took_s, busy, listed])
            time.sleep(QUESTION_S)

    def managed(self) -> str:
        """Managed memory counts in full: twice the limit is refused, half of it is granted."""
        with self.limited() as (env, region):
            program = self.program(env).start()
            assert program.call("cuMemAllocManaged", OUT, 2 * LIMIT, 1)[0] == OUT_OF_MEMORY
            program.do("cuMemAllocManaged", OUT, LIMIT // 2, 1)
            used = region.snapshot().devices[0].memory_used_bytes
            assert region.snapshot().refusals == 1
        assert used >= LIMIT // 2
        return f"{used >> 20} MiB with half of the limit"

    def reset(self) -> str:
        """After a reset of the device all is free, and the limit can be reached again."""
        with self.limited() as (env, region):
            program = self.program(env).start()
            for _ in range(2):
                program.allocate(program.info()[0] - 16 * MIB)
                program.do("cuDevicePrimaryCtxReset_v2", 0)
                left = region.snapshot().devices[0].memory_used_bytes
                assert left < LIMIT // 2, f"{left >> 20} MiB stay"
                program.start()
        return "two resets"

    def short_programs(self) -> str:
        """Of 200 short programs none hangs or crashes as it ends."""
        command = [self.built("cost"), "launch", "1", "10", "0"]
        with self.limited(sm=50) as (env, _):
            for _ in range(20):
                programs = [
                    subprocess.Popen(
                        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                    )
                    for _ in range(10)
                ]
                for program in programs:
                    _, said = program.communicate(timeout=60)
                    # Ten contexts may not fit at once.
                    assert program.returncode == 0 or b"gives 2" in said, said
        return "200 programs"

    def to_the_byte(self) -> str:
        """Memory is granted up to the limit; driver and region agree within 5 %."""
        with self.limited() as (env, region):
            program = self.program(env).start()
            free, total = program.info()
            assert total == LIMIT
            program.allocate(free // 2)
            used = region.snapshot().devices[0].memory_used_bytes
            driver = program.nvml_processes(0).get(program.pid)
            self.fill(program, region)
        if driver is None:
            return f"region {used >> 20} MiB, NVML does not show this pid"
        assert abs(driver - used) <= 0.05 * driver, f"driver {driver}, region {used}"
        return f"driver {driver >> 20} MiB, region {used >> 20} MiB"

    def fill(self, program: CudaProgram, region: hami.Region) -> None:
        left = LIMIT - region.snapshot().devices[0].memory_used_bytes
        assert program.call("cuMemAlloc_v2", OUT, left + 1)[0] == OUT_OF_MEMORY
        program.allocate(left)

    def imports(self) -> str:
        """Memory of another process counts for the one that has made it."""
        size, lazy_peer_access = LIMIT // 4, 1
        with self.limited() as (env, making), self.limited() as (other_env, importing):
            maker, user = self.program(env).start(), self.program(other_env).start()
            before = importing.snapshot().devices[0].memory_used_bytes
            handle = maker.do("cuIpcGetMemHandle", room(64), maker.allocate(size))
            user.do("cuIpcOpenMemHandle_v2", OUT, f"struct:{handle}", lazy_peer_access)
            # What NVML says of a process is counted each second.
            time.sleep(3)
            driver = user.nvml_processes(0).get(user.pid)
            made, used = (
                region.snapshot().devices[0].memory_used_bytes for region in (making, importing)
            )
        seen = f"maker {made >> 20} MiB; importer {used >> 20}, before {before >> 20}, "
        seen += "not shown by NVML" if driver is None else f"by NVML {driver >> 20}"
        assert made >= size, seen
        assert used < before + size // 2, seen
        return seen

    def nvidia_smi(self) -> str:
        """nvidia-smi shows the limit as the GPU's memory, and prints nothing else."""
        if shutil.which("nvidia-smi") is None:
            raise Skipped("no nvidia-smi")
        query = "--query-gpu=memory.total", "--format=csv,noheader,nounits"
        with self.limited() as (env, _):
            done = subprocess.run(
                ["nvidia-smi", "-i", "0", *query],
                env=env,
                capture_output=True,
                text=True,
                check=True,
            )
        assert (done.stdout.strip(), done.stderr) == (str(LIMIT >> 20), "")
        return f"{done.stdout.strip()} MiB"

    def kills(self) -> str:
        """The memory of a killed program is another one's at once."""
        with self.limited() as (env, region):
            survivor = self.program(env).start()
            alone = region.snapshot().devices[0].memory_used_bytes
            for _ in range(5):
                victim = self.program(env).start()
                victim.allocate(LIMIT // 4)
                victim.kill()
                deadline = time.monotonic() + 10
                while region.snapshot().devices[0].memory_used_bytes > alone:
                    assert time.monotonic() < deadline, "it was not reaped"
                    time.sleep(0.05)
            survivor.allocate(LIMIT - alone)
        return "5 kills"

    def call_cost(self, what: str, most_ns: int) -> str:
        """A call costs no more than that beyond what it costs without the library."""
        # Whatever else is at work on the machine only adds to it.
        tried = [self.measured_cost(what)]
        while tried[-1][1] >= most_ns and len(tried) < TRIES:
            tried.append(self.measured_cost(what))
        bare, beyond = tried[-1]
        assert beyond < most_ns, f"{tried}"
        return f"{bare:.0f} ns, and {beyond:.0f} ns beyond"

    def measured_cost(self, what: str) -> tuple[float, float]:
        """Nanoseconds of a call without the library, and those that it adds."""
        cost = self.built("cost")
        seen = {}
        with self.limited() as (env, _):
            for name, each in (("bare", self.bare()), ("ours", env), ("bare again", self.bare())):
                command = [cost, what, "20", "1000", "0"]
                done = subprocess.run(command, env=each, capture_output=True, text=True, check=True)
                seen[name] = statistics.median(map(float, done.stdout.split()))
                total = int(done.stderr.split()[0])
                assert (total == LIMIT) == (name == "ours"), "the library is not in the program"
        return seen["bare"], seen["ours"] - min(seen["bare"], seen["bare again"])

    def plain_names(self) -> str:
        """A program that opens libcuda.so is shown its limit."""
        with self.limited() as (env, _):
            command = [sys.executable, "-I", "-S", "-c", PLAIN]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stdout == f"{LIMIT}\n", done.stdout
        return "libcuda.so"

    def growth(self) -> str:
        """What the driver takes for itself after the context is counted within three seconds."""
        malloc_heap, heap = 2, 256 * MIB
        with self.limited() as (env, region):
            program = self.program(env).start()
            before = region.snapshot().devices[0].memory_used_bytes
            program.do("cuCtxSetLimit", malloc_heap, heap)
            program.do("cuModuleLoadData", OUT, "text:" + KERNELS)
            time.sleep(3)
            used = region.snapshot().devices[0].memory_used_bytes
            driver = program.nvml_processes(0).get(program.pid)
        if driver is None:
            raise Skipped("NVML does not show this pid")
        assert abs(driver - used) <= 0.05 * driver, f"driver {driver}, region {used}"
        return f"{before >> 20} MiB, then driver {driver >> 20} MiB, region {used >> 20} MiB"

    def captures(self) -> str:
        """A capture in global mode goes on while the library asks about pools."""
        release_threshold, non_blocking = 4, 1
        with self.limited() as (env, _):
            program = self.program(env).start()
            pool = program.do("cuDeviceGetDefaultMemPool", OUT, 0)
            program.do("cuMemPoolSetAttribute", pool, release_threshold, f"bytes:{'ff' * 8}")
            program.do("cuMemFreeAsync", program.do("cuMemAllocAsync", OUT, MIB, 0), 0)
            stream = program.do("cuStreamCreate", OUT, non_blocking)
            other = program.do("cuStreamCreate", OUT, non_blocking)
            program.do("cuStreamBeginCapture_v2", stream, 0)
            time.sleep(1)
            made = program.do("cuMemAllocAsync", OUT, 64 * MIB, other)
            program.do("cuMemFreeAsync", made, other)
            program.do("cuStreamEndCapture", stream, OUT)
        return "one second"

    def killed_by_threads(self) -> str:
        """Eight threads that allocate what a killed program held all get it."""
        threads, size = 8, 32 * MIB
        together = self.built("together")
        with self.limited(memory=None) as (env, region):
            command = [together, str(threads), str(size)]
            with subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as survivor:
                survivor.stdout.readline()
                victim = self.program(env).start()
                victim.allocate(threads * size)
                used = region.snapshot().devices[0].memory_used_bytes
                region.set_memory_limit(used, device=0)
                victim.kill()
                survivor.stdin.write("\n")
                survivor.stdin.flush()
                granted = survivor.stdout.readline().strip()
                survivor.kill()
        assert granted == str(threads), f"{granted} of {threads}"
        return f"{threads} threads"

    def crowded(self) -> str:
        """A context that does not fit is refused, or nothing is granted in it."""
        crowding = self.built("crowding")
        with self.limited() as (env, region):
            program = self.program(env).start()
            context = region.snapshot().devices[0].memory_used_bytes
            program.allocate(LIMIT - context - context // 2)
            done = subprocess.run(
                [crowding, "5"], env=env, capture_output=True, text=True, check=False
            )
        assert done.returncode == 0, done.stderr
        return "5 processes"

    def stopped_sampler(self) -> str:
        """The limit holds for a program whose neighbour is stopped."""
        busy = self.built("busy")
        command = [busy, "kernel", "busy_1ms", "1", "20", "0"]
        with contextlib.ExitStack() as stack:
            env, _ = stack.enter_context(self.limited(memory=None, sm=50))
            programs = []
            for _ in range(2):
                started = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
                programs.append(stack.enter_context(started))
                time.sleep(3)
            stop(programs[0].pid, Path(os.environ.get("FAKE_CUDA_STATE", "")))
            time.sleep(3)
            mean = self.mean_utilisation()
            for program in programs:
                program.kill()
        assert mean <= 65, f"{mean:.0f} %"
        return f"{mean:.0f} %"

    def waiting_kernel(self) -> str:
        """A kernel that waits for a launch gets it within ten seconds."""
        longest_s = 0.0
        with self.limited(memory=None, sm=10) as (env, _):
            # The driver cannot load a kernel while another one runs.
            program = self.program({**env, "CUDA_MODULE_LOADING": "EAGER"}).start()
            for launch in launches(program, "busy_8000ms", "release"):
                begun_s = time.monotonic()
                launch()
                longest_s = max(longest_s, time.monotonic() - begun_s)
            program.do("cuCtxSynchronize")
            program.kill()
        assert longest_s < 12, f"{longest_s:.1f} s"
        return f"{longest_s:.1f} s"

    def two_busy(self, *prefix: str, **more: str) -> tuple[float, str]:
        """How busy two programs keep the GPU under a limit of half, and what they say."""
        busy = f"{self.built('busy')} kernel busy_1ms 1 20 0"
        with self.limited(memory=None, sm=50) as (env, _):
            command = [*prefix, "sh", "-c", f"{busy} & {busy} & wait"]
            with subprocess.Popen(
                command,
                env={**env, **more},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            ) as programs:
                # NVML may take 5 s to list them.
                time.sleep(8)
                mean = self.mean_utilisation()
                ended = programs.poll()
                os.killpg(programs.pid, signal.SIGKILL)
                _, said = programs.communicate()
        assert ended is None, f"they have ended: {said}"
        assert mean <= 65 or "cannot be held" in said, f"{mean:.0f} %, and no message"
        return mean, said

    def two_programs(self) -> str:
        """Two programs are held together."""
        mean, said = self.two_busy()
        assert not said, said
        return f"{mean:.0f} %"

    def own_pids(self) -> str:
        """Two programs in a pid namespace of their own are held, or say that they are not."""
        if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
            raise Skipped("no new pid namespace")
        program = CudaProgram(self.bare(), UNSHARE)
        self.programs.append(program)
        # It is the first process there.
        whose = "its own" if 1 in program.start().nvml_processes(0) else "the host's"
        program.kill()
        mean, said = self.two_busy(*UNSHARE)
        return f"{mean:.0f} %, {'a message' if said else 'no message'}; NVML shows {whose} pids"

    def mps(self) -> str:
        """Under MPS memory is held to the byte, and time too, or they say that it is not."""
        control = shutil.which("nvidia-cuda-mps-control")
        if control is None:
            raise Skipped("no nvidia-cuda-mps-control")
        place = self.place / "mps"
        place.mkdir()
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        daemon = dict.fromkeys(names, str(place))
        bare = {**self.bare(), **daemon}
        subprocess.run([control, "-d"], env=bare, check=True, timeout=60)
        try:
            with self.limited() as (env, region):
                program = self.program({**env, **daemon}).start()
                self.fill(program, region)
                program.kill()
            mean, said = self.two_busy(**daemon)
        finally:
            subprocess.run([control], env=bare, input=b"quit\n", check=True, timeout=60)
        return f"{mean:.0f} %, {'a message' if said else 'no message'}"

    def replayed(self) -> str:
        """On the models limits hold by an NVML that answers as this one."""
        if not self.waves:
            raise Skipped("no answers are saved")
        command = ["make", "--silent", f"BUILD={self.place}", f"{self.place}/law_model"]
        subprocess.run(command, cwd=TESTS / "preload", check=True)
        return "; ".join(replay(self.place, wave) for wave in self.waves)

    def mean_utilisation(self) -> float:
        """The GPU's own figure, over some seconds from now on."""
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        figures = []
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            figures.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)
            time.sleep(0.1)
        return statistics.mean(figures)

    def utilisation_by(self, style: str, env: dict[str, str]) -> float:
        """The GPU's own figure while one program keeps it as busy as it may."""
        command = [self.built("busy"), style, "busy_1ms", "1", "20", "0"]
        if style == "GEMM":
            command = [sys.executable, "-c", GEMM]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline(), "it has ended"
            time.sleep(3)
            mean = self.mean_utilisation()
            process.send_signal(signal.SIGKILL)
        return mean

    def share(self, style: str, limit: int) -> str:
        """The GPU's own utilisation stays within 10 points of the limit."""
        if style == "GEMM":
            need_torch()
        tried = []
        for _ in range(TRIES):
            with self.limited(memory=None, sm=limit) as (env, _):
                mean = self.utilisation_by(style, env)
            assert mean <= limit + 10, f"{mean:.0f} %"
            wanted: float = limit
            if mean < self.least * (limit - 10):
                # A busy machine starves the program, with the library and without.
                wanted = min(wanted, self.utilisation_by(style, self.bare()))
            if mean >= self.least * (wanted - 10):
                return f"{mean:.0f} %"
            tried.append(f"{mean:.0f} % of {wanted:.0f}")
        raise AssertionError(", ".join(tried))

    def torch(self, allocator: str) -> str:
        """PyTorch gets its out-of-memory error at the limit."""
        need_torch()
        with self.limited() as (env, _):
            chosen = {**env, "PYTORCH_CUDA_ALLOC_CONF": allocator}
            answer = subprocess.run(
                [sys.executable, "-c", TORCH], env=chosen, capture_output=True, check=True
            )
        held, free, total = json.loads(answer.stdout)
        assert total == LIMIT
        assert LIMIT // 2 < held <= LIMIT
        assert free <= LIMIT - held
        return f"{held >> 20} MiB of {total >> 20}"

    def nccl(self) -> str:
        """NCCL sums over two GPUs; how much of its progress is left under an SM limit."""
        need_torch()
        if pynvml.nvmlDeviceGetCount() < 2:
            raise Skipped("one GPU only")
        script = self.place / "nccl.py"
        script.write_text(NCCL, encoding="utf-8")
        rounds = []
        for sm in (None, 50):
            with self.limited(memory=None, sm=sm) as (env, _):
                command = [sys.executable, str(script)]
                done = subprocess.run(
                    command, env=env, check=True, timeout=120, capture_output=True, text=True
                )
            rounds.append(int(done.stdout))
        return f"{rounds[0]} rounds, under --sm 50 {rounds[1]}"

    def all(self) -> dict[str, Callable[[], str]]:
        found: dict[str, Callable[[], str]] = {
            "addresses": self.addresses,
            "size of a context": self.context_size,
            "samples, one process": lambda: self.sampling(1),
            "samples, four processes": lambda: self.sampling(4),
            "law, replayed": self.replayed,
            "managed memory": self.managed,
            "imported memory": self.imports,
            "resets": self.reset,
            "short programs": self.short_programs,
            "memory to the byte": self.to_the_byte,
            "nvidia-smi": self.nvidia_smi,
            "kill -9": self.kills,
            "plain names": self.plain_names,
            "growth of the driver": self.growth,
            "captures": self.captures,
            "threads after kill -9": self.killed_by_threads,
            "contexts that do not fit": self.crowded,
            "cost of a launch": lambda: self.call_cost("launch", 50),
            "cost of asynchronous memory": lambda: self.call_cost("async", 1000),
            # A charge takes the region's lock and wakes a waiter: one call of the kernel.
            "cost of a spaced allocation": lambda: self.call_cost("spaced-alloc", 1000),
            "SM limit beside a stopped program": self.stopped_sampler,
            "SM limit of two programs": self.two_programs,
            "SM limit in a pid namespace": self.own_pids,
            "MPS": self.mps,
            "kernel that waits for a launch": self.waiting_kernel,
        }
        for style in ("kernel", "graph", "GEMM"):
            for limit in (80, 50, 20):
                found[f"SM {limit}, {style}s"] = lambda s=style, p=limit: self.share(s, p)
        for allocator in ("backend:native", "expandable_segments:True", "backend:cudaMallocAsync"):
            found[f"PyTorch, {allocator}"] = lambda a=allocator: self.torch(a)
        return {**found, "NCCL": self.nccl}


def exported_hooks(text: str) -> list[str]:
    """The functions that the library exports; every driver of CUDA 12 has them."""
    hooks, _, _ = text.partition("#define HR_CUDA_CALLED")
    return re.findall(r"X\((cu\w+)", re.sub(r"#define HR_NEW\w*\(X\)(?:.*\\\n)+.*\n", "", hooks))


def launches(program: CudaProgram, *names: str) -> list[Callable[[], Any]]:
    """Launch each of the `KERNELS`, on a stream of its own."""
    non_blocking = 1
    module = program.do("cuModuleLoadData", OUT, "text:" + KERNELS)
    found = []
    for name in names:
        kernel = program.do("cuModuleGetFunction", OUT, module, "text:" + name)
        stream = program.do("cuStreamCreate", OUT, non_blocking)
        launch = ("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, stream, None, None)
        found.append(partial(program.do, *launch))
    return found


def need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise Skipped("PyTorch is not installed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", type=Path, help="where the driver's libraries are")
    parser.add_argument("--seconds", type=float, default=10, help="of each measured SM limit")
    parser.add_argument(
        "--least",
        type=float,
        default=1,
        help="share of (SM limit - 10) that a program must reach, less where others need the CPUs",
    )
    parser.add_argument("--trace", type=Path, default=Path("first-contact.json"))
    parser.add_argument("--replay", type=Path, help="only the models, with a trace of another GPU")
    wanted = parser.parse_args()
    checks = Checks(wanted.driver, wanted.seconds, wanted.least)
    chosen = checks.all()
    if wanted.replay is not None:
        checks.waves = json.loads(wanted.replay.read_text(encoding="utf-8"))["waves"]
        chosen = {"law, replayed": checks.replayed}
    steps: list[tuple[str, str, str]] = []
    try:
        for name, check in chosen.items():
            try:
                step = name, "ok", check()
            except Skipped as reason:
                step = name, "not tried", str(reason)
            except (AssertionError, OSError, subprocess.SubprocessError, hami.RegionError) as error:
                step = name, "FAILED", str(error)
            steps.append(step)
            print(f"{step[1]:9} {name}: {step[2]}", flush=True)
    finally:
        if wanted.replay is None:
            trace = {"steps": steps, "waves": checks.waves}
            wanted.trace.write_text(json.dumps(trace), encoding="utf-8")
        checks.close()
    return 1 if any(verdict == "FAILED" for _, verdict, _ in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
