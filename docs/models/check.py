"""Check the models beside this file exhaustively with Spin: `make models`.

The file `runs` lists what is run. Each run covers every reachable state, or it fails: a search that
was cut off by depth or memory proves nothing. A run that must find a fault fails if it finds none.
Standard library only; spin and a C compiler are taken from PATH.
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEEPEST = 4_000_000  # steps; deeper is an error, not a shorter search
MEMORY_MIB = 12_000
STEPS_SHOWN = 60  # the last ones before a property fails
COMPILE = ["gcc", "-w", "-DSAFETY", "-DNOFAIR", f"-DMEMLIM={MEMORY_MIB}"]
# The lock's provided() clauses rule out partial-order reduction. The slots' states are long; so is
# their program, and -O2 takes longer than it saves.
COMPILE_OF = {
    "lock": ["-O2", "-DNOREDUCE"],
    "slots": ["-O1", "-DCOLLAPSE"],
    "marks": ["-O1", "-DCOLLAPSE"],
    "seqlock": ["-O1", "-DCOLLAPSE"],
    "charge": ["-O1"],
}

# What a line of `runs` leaves out.
USUAL_OF: dict[str, dict[str, str]] = {
    "lock": {},
    "marks": {"L": "NONE", "LIVES": "0"},
    "charge": {},
    "seqlock": {"TOOLS": "1", "RUNS": "1", "KILLS": "2", "ACCOUNTS": "1"},
    "slots": {"K3": "NONE", "LOCKLESS": "0", "LAYOUT_12": "0", "LIVES": "0", "TORN": "0"},
}


@dataclass(frozen=True)
class Run:
    """One line of `runs`: a model, what it must show, and the definitions that make the case."""

    model: str
    must_hold: bool
    is_long: bool
    definitions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.model}: {' '.join(self.definitions)}"


def read_runs(path: Path) -> list[Run]:
    """Read the table: model, holds or breaks, quick or long, definitions."""
    runs = []
    for line in path.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            model, expected, length, *definitions = words
            if expected not in ("holds", "breaks") or length not in ("quick", "long"):
                raise SystemExit(f"{path}: not understood: {line}")
            runs.append(Run(model, expected == "holds", length == "long", tuple(definitions)))
    return runs


def command(words: list[str], directory: Path) -> str:
    """Run one command and return what it says; raise RuntimeError with that if it fails."""
    done = subprocess.run(words, cwd=directory, text=True, capture_output=True, check=False)
    text = done.stdout + done.stderr
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]}: {text.strip()[-2000:]}")
    return text


def problem_of(run: Run, report: str) -> str:
    """Say in what the search's report differs from what the run must show."""
    errors = re.search(r"errors: (\d+)", report)
    if errors is None:
        return f"no result: {report.strip()[-500:]}"
    found = re.search(r"pan:\d+: (.*)", report)
    if not run.must_hold:
        is_violation = found is not None and found[1].startswith("assertion violated")
        return "" if is_violation else "the fault was not found"
    if errors[1] != "0":
        return found[1] if found else "errors"
    cut_off = re.search(
        r"max search depth too small|out of memory|MEMLIM|hash conflicts.*bitstate", report
    )
    return f"not exhaustive: {cut_off[0]}" if cut_off else ""


def check(run: Run) -> tuple[bool, str]:
    """Generate, compile and run one search; return whether it shows what it must, and a report."""
    began = time.monotonic()
    states = "no"
    with tempfile.TemporaryDirectory(prefix="model-") as name:
        directory = Path(name)
        shutil.copy(HERE / f"{run.model}.pml", directory / "model.pml")
        named = dict(definition.split("=") for definition in run.definitions)
        defines = [f"-D{name}={value}" for name, value in (USUAL_OF[run.model] | named).items()]
        try:
            command(["spin", "-a", *defines, "model.pml"], directory)
            command([*COMPILE, *COMPILE_OF[run.model], "-o", "pan", "pan.c"], directory)
            # -E: a process that was killed stands where it was killed, which is no fault.
            report = command(["./pan", "-E", f"-m{DEEPEST}"], directory)
            problem = problem_of(run, report)
            if problem and (directory / "model.pml.trail").exists():
                steps = command(["spin", "-t", "-p", *defines, "model.pml"], directory)
                last = [step for step in steps.splitlines() if "proc " in step][-STEPS_SHOWN:]
                problem += "\n" + "\n".join(last)
            if stored := re.search(r"([\d.e+]+) states, stored", report):
                states = f"{int(float(stored[1])):,}"
        except RuntimeError as error:
            problem = str(error)
    verdict = "FAILED" if problem else "holds " if run.must_hold else "breaks"
    line = f"{verdict} {states:>12} states {time.monotonic() - began:>7.1f} s  {run}"
    return not problem, f"{line}\n{problem}".rstrip()


def main() -> None:
    """Check all runs of the table, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--all", action="store_true", help="the long runs too (up to 12 GiB, hours)"
    )
    arguments = parser.parse_args()
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            raise SystemExit(f"no {tool} here; on Debian: apt install spin gcc")
    runs = [run for run in read_runs(HERE / "runs") if arguments.all or not run.is_long]
    failed = 0
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for is_shown, report in pool.map(check, runs):
            failed += not is_shown
            print(report, flush=True)
    if failed:
        raise SystemExit(f"{failed} of {len(runs)} runs failed")


if __name__ == "__main__":
    main()
