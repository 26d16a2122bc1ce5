"""`hamiregion create`: a region as libvgpu would have made it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from libhamiregion import Layout, create_region, limits_from_environment, open_region

from . import options
from .failures import bad_arguments
from .output import as_plain, on_terminal, terminal, write, write_json
from .plain import region_text
from .render import region_view

if TYPE_CHECKING:
    from .options import Limit


@click.command()
@options.file_argument
@click.option(
    "--memory",
    type=options.MEMORY,
    metavar="SIZE",
    multiple=True,
    help="Memory limit of the next device: 6GiB, 3000m, or `unlimited`. Repeatable.",
)
@click.option(
    "--sm",
    type=options.SM,
    metavar="PERCENT",
    multiple=True,
    help="SM limit of the next device: 1 to 100, or `unlimited`. Repeatable.",
)
@click.option("--uuid", "uuids", metavar="UUID", multiple=True, help="UUID of the next device.")
@click.option(
    "--priority", type=int, default=1, show_default=True, help="0 is high, 1 is low.", metavar="N"
)
@click.option(
    "--layout",
    type=options.LayoutName(),
    default=Layout.V1_2.value,
    show_default=True,
    metavar="NAME",
    help=f"Which generation of HAMi it is for: {options.LAYOUT_NAMES}.",
)
@click.option(
    "--from-environment",
    is_flag=True,
    help="Take the limits from CUDA_DEVICE_MEMORY_LIMIT[_N] and CUDA_DEVICE_SM_LIMIT[_N],"
    " read as libvgpu reads them.",
)
@options.dry_run_option
@options.json_option
@options.no_color_option
def create(
    path: str,
    memory: tuple[Limit, ...],
    sm: tuple[Limit, ...],
    uuids: tuple[str, ...],
    priority: int,
    layout: Layout,
    from_environment: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a new region FILE that libvgpu accepts; never overwrites.

    \b
    hamiregion create FILE --memory 8GiB --memory 4GiB --sm 50
    CUDA_DEVICE_MEMORY_LIMIT=3000m hamiregion create FILE --from-environment

    Limits not given are unlimited.  The answer, also with --json, is what `hamiregion show` says
    of the new region.
    """  # noqa: D301 (click looks for the character itself)
    if from_environment:
        if memory or sm:
            raise click.UsageError("--from-environment already says what --memory and --sm would.")
        found = limits_from_environment(os.environ)
        memory_limits, sm_limits = found.memory_limits_bytes, found.sm_limits_percent
    else:
        memory_limits = tuple(limit.value for limit in memory)
        sm_limits = tuple(limit.value for limit in sm)

    def make(target: str) -> None:
        with bad_arguments():
            create_region(
                target,
                memory_limits=memory_limits,
                sm_limits=sm_limits,
                priority=priority,
                uuids=uuids,
                layout=layout,
            )

    if dry_run:
        _check_place(path)
        with tempfile.TemporaryDirectory(prefix="hamiregion-") as directory:
            made = f"{directory}/dry-run.cache"
            make(made)
            with open_region(made, layout=layout) as region:
                snapshot = attrs.evolve(region.snapshot(), path=str(Path(path).absolute()))
    else:
        make(path)
        with open_region(path, layout=layout) as region:
            snapshot = region.snapshot()
    if as_json:
        write_json(as_plain(snapshot))
        return
    if on_terminal():
        console = terminal()
        console.print(region_view(snapshot, console.width))
    else:
        write(region_text(snapshot))
    if dry_run:
        write("dry run: nothing was written\n")


def _check_place(path: str) -> None:
    """Raise what making a file there would, without making one."""
    directory = Path(path).absolute().parent
    directory.stat()
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
