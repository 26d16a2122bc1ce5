"""A budget for CUDA programs, and the environment that holds a program to it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, get_args

import attrs

from libhamiregion import create_region, open_region

from . import cleaner
from .driver import Driver, find_driver, search_path
from .errors import LaunchError
from .libraries import is_stand_in_directory, preloaded_library, stand_in_links
from .limits import Limits, check_limits, memory_limits, sm_limits
from .nvml import list_gpus
from .run_directory import REGION, make_run_directory
from .selection import Selection, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Unpack

    from libhamiregion import RegionSnapshot
    from libhamiregion.errors import PathLike

#: How the library gets into the program.
Inject: TypeAlias = Literal["standin", "preload"]
#: The behaviour of a program if its region cannot be used.
OnError: TypeAlias = Literal["open", "refuse"]

REGION_VARIABLE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
ON_ERROR_VARIABLE = "HAMIREGION_ON_ERROR"
_PATH = "LD_LIBRARY_PATH"
_PRELOAD = "LD_PRELOAD"
_LIBVGPU = "libvgpu.so"


class Budget(TypedDict, total=False):
    """What `environment` takes of a program's budget, and says of it."""

    memory_limit: Limits
    sm_limit: Limits
    burst: bool
    gpus: Sequence[int | str] | None
    priority: int
    region: PathLike | None
    inject: Inject
    on_error: OnError | None
    driver: PathLike | None
    env: Mapping[str, str] | None


@attrs.frozen
class Launch:
    """The start of a program, as `plan_launch` has planned it; no file exists yet.

    Attributes:
        selection: The GPUs that the program sees, in the order of the region's devices.
        driver: Where the driver's files are.
        joined_region: The region to join; None if the run makes its own.
        memory_limits_bytes: One per GPU; None is unlimited.
        sm_limits_percent: One per GPU; None is unlimited.
        burst: Whether SM limits hold only while another program wants the GPU.
        priority: 0 is high, 1 is low.
        inject: How the library gets into the program.
        on_error: The behaviour if the region cannot be used; None is the library's rule.
        before: The environment that the program would have without us.
        keep: Keep the region that the run makes.
    """

    selection: Selection
    driver: Driver
    joined_region: str | None
    memory_limits_bytes: tuple[int | None, ...]
    sm_limits_percent: tuple[int | None, ...]
    burst: bool
    priority: int
    inject: Inject
    on_error: OnError | None
    before: Mapping[str, str]
    keep: bool

    @property
    def needs_directory(self) -> bool:
        """Whether the run has files of its own."""
        return self.joined_region is None or self.inject == "standin"

    def region(self, directory: str | None) -> str:
        """The path of the program's region.

        Args:
            directory: That of the run; None where it needs none.
        """
        return self.joined_region or f"{directory}/{REGION}"

    def fill(self, directory: str) -> None:
        """Make the files of the run."""
        if self.joined_region is None:
            create_region(
                self.region(directory),
                memory_limits=self.memory_limits_bytes,
                sm_limits=self.sm_limits_percent,
                priority=self.priority,
                uuids=[gpu.uuid for gpu in self.selection.gpus],
            )
            if self.burst:
                with open_region(self.region(directory), writable=True) as region:
                    region.set_burst(True)
        if self.inject == "standin":
            for name, target in stand_in_links(self.driver).items():
                Path(directory, name).symlink_to(target)

    def variables(self, directory: str | None) -> dict[str, str]:
        """The variables that the run adds to the program's environment.

        Args:
            directory: That of the run; None where it needs none.

        Raises:
            LaunchError: A path that such a variable cannot hold.
        """
        found = {REGION_VARIABLE: self.region(directory), **self.selection.variables()}
        if self.on_error is not None:
            found[ON_ERROR_VARIABLE] = self.on_error
        inherited = search_path(self.before.get(_PATH, ""))
        kept = [entry for entry in inherited if not is_stand_in_directory(entry)]
        ours = [directory] if directory is not None and self.inject == "standin" else []
        named = [self.driver.directory] if self.driver.directory is not None else []
        if ours or named or kept != inherited:
            found[_PATH] = _joined([*ours, *named, *kept], ":;")
        if self.inject == "preload":
            library = preloaded_library()
            said = re.split("[: ]+", self.before.get(_PRELOAD, "").strip(": "))
            others = [each for each in said if each not in ("", library)]
            # Behind those of others: some, such as sanitizers, insist on being first.
            found[_PRELOAD] = _joined([*others, library], ": ")
        return found


def plan_launch(
    *,
    memory_limit: Limits = None,
    sm_limit: Limits = None,
    burst: bool = False,
    gpus: Sequence[int | str] | None = None,
    priority: int = 1,
    region: PathLike | None = None,
    inject: Inject = "standin",
    on_error: OnError | None = None,
    driver: PathLike | None = None,
    env: Mapping[str, str] | None = None,
    keep: bool = False,
) -> Launch:
    """Check all arguments and plan the start of a program, without making files.

    Args, Raises: As `environment`.
    """
    before = dict(os.environ if env is None else env)
    if inject not in get_args(Inject):
        raise ValueError(f"inject is one of {get_args(Inject)}, not {inject!r}")
    if on_error is not None and on_error not in get_args(OnError):
        raise ValueError(f"on_error is one of {get_args(OnError)} or None, not {on_error!r}")
    if region is not None and not (memory_limit is None and sm_limit is None and not burst):
        raise ValueError(
            "a region that is joined has its own limits; change them with Region.set_memory_limit, "
            "set_sm_limit and set_burst (hamiregion limits set FILE)"
        )
    check_limits(memory_limit, sm_limit)
    if burst and sm_limit is None:
        raise ValueError("burst is for programs under an SM limit: say which one (--sm)")
    _refuse_others(before, joins=region is not None)
    found = find_driver(driver, search_path(before.get(_PATH, "")))
    selection = visible_gpus(list_gpus(found.nvml), before)
    if gpus is not None:
        selection = selection.only(gpus)
    joined = None
    if region is not None:
        with open_region(region, writable=True) as opened:
            joined, uuids = opened.path, opened.uuids
            _refuse_second_law(opened.snapshot())
        selection = selection.only_of_region(uuids)
        if not selection.choices:
            raise LaunchError(f"{joined!r} is the region of other GPUs than the program would see")
    selection.refuse_failed()
    return Launch(
        selection,
        found,
        joined,
        memory_limits(memory_limit, selection),
        sm_limits(sm_limit, selection),
        burst,
        priority,
        inject,
        on_error,
        before,
        keep and joined is None,
    )


@contextlib.contextmanager
def environment(*, keep: bool = False, **budget: Unpack[Budget]) -> Iterator[dict[str, str]]:
    """Give programs an environment in which CUDA keeps to a budget.

    A context manager: the region is made at its beginning and removed at its end, unless processes
    that were started with it still run; then the next run removes it.  The region's path is
    ``CUDA_DEVICE_MEMORY_SHARED_CACHE`` of the environment; edit its limits at any time.

    The budget is cooperative: it holds for programs that keep this environment.

    Args:
        memory_limit: For each GPU: bytes, text such as "4GiB", "80%" (of the GPU's memory),
            "unlimited" or None.  Or a mapping from GPU (index or uuid) to such limits, with None
            as the key of all other GPUs.
        sm_limit: For each GPU: percent of its time, 1 to 100 or "50%", "unlimited" or None.  Or a
            mapping, as above.
        burst: No SM limit holds while no other program wants the GPU.
        gpus: The GPUs for the program, indices or uuids, among those that CUDA_VISIBLE_DEVICES
            leaves.  None: all of them.
        priority: 0 is high, 1 is low.
        region: A region to join, whose limits then hold for all its programs together.  None makes
            a new one.
        inject: "standin" puts libraries in the place of the driver's, by LD_LIBRARY_PATH; "preload"
            loads one before all others, by LD_PRELOAD.
        on_error: If a program cannot use its region: "refuse" CUDA, or leave it "open", without
            limits.  None: refuse at the start, open later.
        driver: The directory of libcuda.so.1 and libnvidia-ml.so.1.  None: where the loader finds
            them.
        keep: Keep a new region, to read its usage later.
        env: The environment without the budget.  None: os.environ.

    Yields:
        The whole environment, for `subprocess` and its like.

    Raises:
        LaunchError: No driver, no such GPU, a limit that cannot be held there, libvgpu.so, or an
            environment that has a region already.
        ValueError, TypeError: An argument is none of these.
        RegionError: The region to join cannot be opened.

    Thread safety: any number may be open at once, in any threads.

    Shell: ``hamiregion run --dry-run``.
    """
    with prepared(plan_launch(keep=keep, **budget)) as (_, variables):
        yield variables


@contextlib.contextmanager
def prepared(launch: Launch) -> Iterator[tuple[str | None, dict[str, str]]]:
    """Make the files of a run; at the end of the block remove them, unless kept or in use.

    Yields:
        The directory of the run, None where it needs none; and the program's whole environment.
    """
    stays, before, keep = False, launch.before, launch.keep
    directory = make_run_directory(before, keep=keep) if launch.needs_directory else None
    try:
        if directory is not None:
            launch.fill(directory)
        variables = {**before, **launch.variables(directory)}
        stays = keep
        yield directory, variables
    finally:
        if directory is not None and not stays and not cleaner.users(directory):
            cleaner.remove(directory)


def _refuse_others(environment: Mapping[str, str], *, joins: bool) -> None:
    """Refuse an environment in which something else limits CUDA already."""
    if _LIBVGPU in environment.get(_PRELOAD, "") or _maps_libvgpu():
        raise LaunchError(
            "libvgpu.so limits this program already, by the region of its container; use "
            "`hamiregion limits set` on that one"
        )
    there = environment.get(REGION_VARIABLE)
    if there and not joins:
        raise LaunchError(
            f"this environment has a region already, {there}; join it with --region FILE, or unset "
            f"{REGION_VARIABLE}"
        )


def _refuse_second_law(snapshot: RegionSnapshot) -> None:
    """Refuse a region whose SM limit libvgpu holds already, by a rule of its own."""
    if all(device.sm_limit_percent is None for device in snapshot.devices):
        return
    for process in snapshot.processes:
        with contextlib.suppress(OSError):
            if _maps_libvgpu(str(process.pid)):
                raise LaunchError(
                    f"libvgpu.so in process {process.pid} holds the SM limit of this region; join "
                    "a region without one (hamiregion limits set FILE --sm unlimited)"
                )


def _maps_libvgpu(process: str = "self") -> bool:
    """Whether a process has libvgpu; this one has if every program is to load it."""
    return _LIBVGPU.encode() in cleaner.read_start(f"/proc/{process}/maps")


def _joined(entries: Sequence[str], separators: str) -> str:
    for entry in entries:
        if any(separator in entry for separator in separators):
            raise LaunchError(f"{entry!r} cannot stand in a list of paths of the loader")
    return separators[0].join(entries)
