"""`hamiregion create`: a region as libvgpu would have made it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from libhamiregion import Layout, create_region, limits_from_environment, open_region
from libhamiregion.layouts import LAYOUTS

from . import options
from .failures import bad_arguments
from .help import verb
from .output import DRY_RUN, Answer
from .show import region_page
from .tables import Lines

if TYPE_CHECKING:
    from libhamiregion import RegionSnapshot
    from libhamiregion.units import HamiVersion


@verb(
    "hamiregion create new.cache --memory 8GiB --memory 4GiB --sm 50",
    "CUDA_DEVICE_MEMORY_LIMIT=3000m hamiregion create new.cache --from-environment",
)
@click.argument("path", metavar="FILE", type=options.PATH)
@click.option(
    "--memory",
    "memory_limits",
    multiple=True,
    help="Memory limit of the next device; repeatable.",
    **options.MEMORY,
)
@click.option(
    "--sm",
    "sm_limits",
    metavar="PERCENT",
    multiple=True,
    help="SM limit of the next device; repeatable.",
)
@click.option("--burst", is_flag=True, help="Programs of `run` may use idle GPU time.")
@click.option("--uuid", "uuids", metavar="UUID", multiple=True, help="UUID of the next device.")
@click.option(
    "--priority", type=int, default=1, show_default=True, help="0 is high, 1 is low.", metavar="N"
)
@click.option(
    "--layout",
    default=LAYOUTS[-1].value,
    show_default=True,
    help=f"Generation of HAMi: {', '.join(options.LAYOUT_NAMES)}.",
    **options.LAYOUT,
)
@click.option(
    "--from-environment",
    is_flag=True,
    help="Read libvgpu's CUDA_DEVICE_MEMORY_LIMIT[_N] and CUDA_DEVICE_SM_LIMIT[_N].",
)
@click.option(
    "--hami-version",
    type=click.Choice(("2.10", "2.11")),
    help="HAMi whose reading of these variables counts; needed if 2.10 and 2.11 differ.",
)
@options.force_option(help="Also memory limits below 16 MiB.")
@options.dry_run_option
@options.answer_options
def create(
    path: str,
    burst: bool,
    from_environment: bool,
    hami_version: HamiVersion | None,
    dry_run: bool,
    answer: Answer,
    **settings: Any,
) -> None:
    """Make a new region FILE that libvgpu accepts; never overwrites."""
    layout: Layout = settings["layout"]
    del settings["force"]
    if hami_version is not None and not from_environment:
        raise click.UsageError("--hami-version is about --from-environment.")
    if from_environment:
        if settings["memory_limits"] or settings["sm_limits"]:
            raise click.UsageError("--from-environment already says what --memory and --sm would.")
        with bad_arguments():
            found = limits_from_environment(os.environ, hami_version=hami_version)
        settings["memory_limits"] = found.memory_limits_bytes
        settings["sm_limits"] = found.sm_limits_percent
    if burst and layout.version is None:
        raise click.UsageError(f"A region of layout {layout.value} has no room for --burst.")

    def make(target: str) -> RegionSnapshot:
        with bad_arguments():
            create_region(target, **settings)
        with open_region(target, layout=layout, writable=burst) as region:
            if burst:
                region.set_burst(True)
            return region.snapshot()

    if not dry_run:
        answer.show(region_page(make(path), burst=burst))
        return
    Path(path).absolute().parent.stat()
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    with tempfile.TemporaryDirectory(prefix="hamiregion-") as directory:
        made = make(f"{directory}/dry-run.cache")
    snapshot = attrs.evolve(made, path=str(Path(path).absolute()))
    answer.show(region_page(snapshot, Lines([DRY_RUN]), burst=burst))
