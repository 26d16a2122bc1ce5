"""`hamiregion run`: any CUDA program within a GPU budget."""

from __future__ import annotations

import functools
import shlex
import sys
from typing import Any

import click

from libhamiregion.run import LaunchError
from libhamiregion.run.environment import Launch, plan_launch
from libhamiregion.run.program import find_program, replace_process
from libhamiregion.run.run_directory import run_bases
from libhamiregion.text import printable

from . import options
from .failures import bad_arguments, failures_of
from .help import verb
from .output import write, write_json

# As env(1), nice(1) and shells have it.
_CANNOT_START = 126
_NOT_FOUND = 127


def _limits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Any:
    """LIMIT for all GPUs, GPU=LIMIT for one; the last one said counts."""
    if not values:
        return None
    found: dict[str | None, str] = {}
    for value in values:
        device, equals, limit = value.rpartition("=")
        found[device if equals else None] = limit
        if param.name == "memory_limit":
            options.typed_memory(ctx, param, limit)
    return found


def _gpus(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str] | None:
    words = [word.strip() for value in values for word in value.split(",")]
    return words or None


_region = functools.partial(options.option, group="Region")
_start = functools.partial(options.option, group="Start")


@verb(
    "hamiregion run --memory 4GiB --sm 50 -- python train.py",
    "hamiregion run --gpus 0,1 --memory 0=4GiB --memory 1=8GiB -- ./simulate",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--memory",
    "memory_limit",
    multiple=True,
    callback=_limits,
    metavar="[GPU=]SIZE",
    help="Memory limit: 4GiB, 80% (of the GPU's) or unlimited; with GPU= of one, by index or uuid."
    "  Repeatable.",
)
@click.option(
    "--sm",
    "sm_limit",
    multiple=True,
    callback=_limits,
    metavar="[GPU=]PERCENT",
    help="SM limit: 1 to 100 percent of the GPU's time, or unlimited.  Repeatable.",
)
@click.option("--burst", is_flag=True, help="No SM limit while no other program wants the GPU.")
@click.option(
    "--gpus",
    multiple=True,
    callback=_gpus,
    metavar="GPU,...",
    help="Only these GPUs, by index or uuid, of those that CUDA_VISIBLE_DEVICES leaves.",
)
@_region("--priority", type=int, default=1, metavar="N")
@_region("--region", type=options.PATH, metavar="FILE")
@_region("--keep", is_flag=True)
@_start("--inject", type=click.Choice(["standin", "preload"]), default="standin")
@_start("--on-error", type=click.Choice(["open", "refuse"]))
@_start("--driver", type=options.PATH, metavar="DIR")
@_start("--dry-run", is_flag=True)
@_start("as_json", "--json", is_flag=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARG]...")
def run(command: tuple[str, ...], dry_run: bool, as_json: bool, **settings: Any) -> int | None:
    """Run PROGRAM within a GPU budget: any CUDA program, unchanged, without HAMi.

    Exit codes: the program's; before it has started 1 failed, 2 wrong usage, 126 the program cannot
    be started, 127 no such program.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run; a program's output is its own")
    if not command and not dry_run:
        raise click.UsageError("Missing argument 'PROGRAM [ARG]...'.")
    with failures_of(LaunchError):
        with bad_arguments():
            launch = plan_launch(**settings)
        if not dry_run:
            return _run(command, launch)
        _show_environment(launch, as_json)
    return None


def _run(command: tuple[str, ...], launch: Launch) -> int:
    program = None
    try:
        program = find_program(command[0], launch.before)
        if len(launch.selection.gpus) > 1 and any(launch.sm_limits_percent):
            sys.stderr.write(
                "Note: programs that wait for each other on several GPUs (collectives) make little "
                "progress under --sm, as waiting counts as work\n"
            )
        with bad_arguments():
            replace_process(program, command, launch, _note_kept)
    except OSError as error:
        if program is not None and error.filename != program:
            raise
        sys.stderr.write(f"Error: {printable(program or command[0])}: {error.strerror}\n")
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_START


def _note_kept(region: str) -> None:
    sys.stderr.write(f"Note: the region stays: {printable(region)}\n")


def _show_environment(launch: Launch, as_json: bool) -> None:
    """Show what the program would get; a directory of its own has no name yet."""
    directory = f"{run_bases(launch.before)[0]}/run_PID" if launch.needs_directory else None
    variables = launch.variables(directory)
    if as_json:
        limits = zip(launch.memory_limits_bytes, launch.sm_limits_percent, strict=True)
        gpus = [
            {
                "uuid": gpu.uuid,
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "memory_limit_bytes": memory_limit,
                "sm_limit_percent": sm_limit,
            }
            for gpu, (memory_limit, sm_limit) in zip(launch.selection.gpus, limits, strict=True)
        ]
        answer = {
            "environment": variables,
            "region": launch.region(directory),
            "complete": directory is None,
            "burst": launch.burst,
            "gpus": gpus,
        }
        write_json("environment/1", answer)
        return
    write("".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))
    if directory is not None:
        sys.stderr.write(
            f"Note: {printable(directory)} exists while a program runs only; for an environment "
            "that works by itself give --region FILE (see `hamiregion create`) and --inject "
            "preload\n"
        )
