"""`hamiregion run`: any CUDA program within a GPU budget."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from libhamiregion.launch import LaunchError
from libhamiregion.launch.environment import plan_launch
from libhamiregion.launch.program import find_program, replace_process
from libhamiregion.launch.run_directory import run_bases
from libhamiregion.text import printable

from . import options
from .failures import Failure, bad_arguments
from .help import Verb
from .output import write, write_json

if TYPE_CHECKING:
    from libhamiregion.launch.environment import Launch

# As env(1), nice(1) and shells have it.
_CANNOT_START = 126
_NOT_FOUND = 127


def _limits(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> Any:
    """LIMIT for all GPUs, GPU=LIMIT for one; the last one said counts."""
    if not values:
        return None
    found: dict[str | None, str] = {}
    for value in values:
        device, equals, limit = value.rpartition("=")
        found[device if equals else None] = limit
    return found


def _gpus(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str] | None:
    words = [word.strip() for value in values for word in value.split(",")]
    return words or None


@click.command(
    cls=Verb,
    examples=[
        "hamiregion run --memory 4GiB --sm 50 -- python train.py",
        "hamiregion run --gpus 0,1 --memory 0=4GiB --memory 1=8GiB -- ./simulate",
    ],
    brief={
        "Region": ("priority", "region", "keep"),
        "Start": ("inject", "on_error", "driver", "dry_run", "as_json"),
    },
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--memory",
    "memory_limit",
    multiple=True,
    callback=_limits,
    metavar="[GPU=]SIZE",
    help="Memory limit: 4GiB, 3000m, 80% (of the GPU's) or unlimited; of all GPUs, or with GPU= of"
    " one, by index or uuid.  Repeatable.",
)
@click.option(
    "--sm",
    "sm_limit",
    multiple=True,
    callback=_limits,
    metavar="[GPU=]PERCENT",
    help="SM limit: 1 to 100 percent of the GPU's time, or unlimited; GPU= as above.  Repeatable.",
)
@click.option(
    "--burst",
    is_flag=True,
    help="The SM limits are soft: the program may use what nobody else on the GPU does, and goes"
    " back to its limit when somebody does: within half a second, or two where NVML measures once"
    " a second.",
)
@click.option(
    "--gpus",
    multiple=True,
    callback=_gpus,
    metavar="GPU,...",
    help="Only these GPUs, by index or uuid, of those that CUDA_VISIBLE_DEVICES leaves.",
)
@click.option(
    "--priority", type=int, default=1, show_default=True, help="0 is high, 1 is low.", metavar="N"
)
@click.option(
    "--region",
    type=options.PATH,
    metavar="FILE",
    help="Join this region: one limit for all programs in it.  [default: a new one]",
)
@click.option(
    "--inject",
    type=click.Choice(["standin", "preload"]),
    default="standin",
    show_default=True,
    help="How: with libraries in the place of the driver's, or by LD_PRELOAD.",
)
@click.option(
    "--on-error",
    type=click.Choice(["open", "refuse"]),
    help="Where the region cannot be used: CUDA without limits, or no CUDA.  [default: refuse when"
    " the program starts to use CUDA, open later]",
)
@click.option(
    "--driver",
    type=options.PATH,
    metavar="DIR",
    help="Where libcuda.so.1 and libnvidia-ml.so.1 are, if the loader does not find them.",
)
@click.option("--keep", is_flag=True, help="Leave the region behind, and say where it is.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the environment that the program would get, as NAME=value; start and make nothing.",
)
@click.option("as_json", "--json", is_flag=True, help="With --dry-run: one JSON object.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARG]...")
def run(
    command: tuple[str, ...], keep: bool, dry_run: bool, as_json: bool, **settings: Any
) -> int | None:
    """Run PROGRAM within a GPU budget: any CUDA program, unchanged, without HAMi.

    \b
    hamiregion run --memory 4GiB --sm 50 -- python train.py
    hamiregion run --sm 50 --burst -- python train.py
    hamiregion run --gpus 0,1 --memory 0=4GiB --memory 1=8GiB -- ./simulate
    hamiregion create team.cache --memory 8GiB
    hamiregion run --region team.cache -- python one.py    # and others: they share 8 GiB

    The program sees the budget as its GPU; an allocation beyond it fails as on a full GPU.  Its
    limits are those of a region, which `show`, `top` and `limits set` read and edit while it runs.
    The command becomes the program: same process, same signals, same exit code.  The region is
    removed when the program and all that it has started have ended.

    A budget is for well-meant programs: it is no isolation.  --sm limits the share of the time
    in which the program's kernels run, not the number of SMs that they use.

    Exit codes: the program's; before it has started 1 failed, 2 wrong usage, 126 the program cannot
    be started, 127 there is no such program.

    JSON (--dry-run): environment (what is added or changed), complete (whether it works by itself),
    burst, region, gpus.
    """  # noqa: D301 (click looks for the character itself)
    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run; a program's output is its own")
    if not command and not dry_run:
        raise click.UsageError("Missing argument 'PROGRAM [ARG]...'.")
    try:
        with bad_arguments():
            launch = plan_launch(**settings)
        if dry_run:
            _show_environment(launch, as_json)
            return None
        return _start(command, launch, keep)
    except LaunchError as error:
        raise Failure(str(error)) from None


def _start(command: tuple[str, ...], launch: Launch, keep: bool) -> int:
    try:
        program = find_program(command[0], launch.before)
    except OSError as error:
        return _not_started(command[0], error)
    try:
        with bad_arguments():
            replace_process(program, command, launch, keep=keep, kept=_say_kept)
    except OSError as error:
        if error.filename != program:
            raise
        return _not_started(program, error)


def _not_started(program: str, error: OSError) -> int:
    sys.stderr.write(f"Error: {printable(program)}: {error.strerror}\n")
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_START


def _say_kept(region: str) -> None:
    sys.stderr.write(f"Note: the region stays: {printable(region)}\n")


def _show_environment(launch: Launch, as_json: bool) -> None:
    """Show what the program would get; a directory of its own has no name yet."""
    directory = f"{run_bases(launch.before)[0]}/run_PID" if launch.needs_directory else None
    variables = launch.variables(directory)
    if as_json:
        write_json(
            "environment/1",
            {
                "environment": variables,
                "region": launch.region(directory),
                "complete": directory is None,
                "burst": launch.burst,
                "gpus": [
                    {
                        "uuid": gpu.uuid,
                        "name": gpu.name,
                        "memory_bytes": gpu.memory_bytes,
                        "memory_limit_bytes": memory_limit,
                        "sm_limit_percent": sm_limit,
                    }
                    for gpu, memory_limit, sm_limit in zip(
                        launch.selection.gpus,
                        launch.memory_limits_bytes,
                        launch.sm_limits_percent,
                        strict=True,
                    )
                ],
            },
        )
        return
    write("".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()))
    if directory is not None:
        sys.stderr.write(
            f"Note: {printable(directory)} exists while a program runs only; for an environment "
            "that works by itself give --region FILE (see `hamiregion create`) and --inject "
            "preload\n"
        )
