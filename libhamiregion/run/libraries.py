"""The libraries of this package that a program loads in front of the driver's."""

from __future__ import annotations

from pathlib import Path

from .driver import CUDA, NVML, Driver, real_name
from .errors import LaunchError

_PLACE = Path(__file__).parent / "lib"
_PRELOADED = _PLACE / "libhamiregion-preload.so"


def stand_in_links(driver: Driver) -> dict[str, str]:
    """The links to stand-ins in the directory of a run: names and targets.

    Raises:
        LaunchError: This installation has no such libraries.
    """
    links = {}
    for name in (CUDA, NVML):
        stand_in = _there(_PLACE / name.replace(".so.1", "-standin.so"))
        # Some programs open a library by its name without a version first.
        links[name] = links[name.removesuffix(".1")] = str(stand_in)
    return links | {real_name(CUDA): driver.cuda, real_name(NVML): driver.nvml}


def preloaded_library() -> str:
    """The library for LD_PRELOAD.

    Raises:
        LaunchError: This installation has none.
    """
    return str(_there(_PRELOADED))


def is_stand_in_directory(path: str) -> bool:
    """Whether a run made this directory for its stand-ins."""
    return Path(path, real_name(CUDA)).is_symlink()


def _there(path: Path) -> Path:
    if not path.is_file():
        raise LaunchError(
            f"this installation of libhamiregion has no libraries for CUDA programs ({path} is "
            "missing); they need glibc, and come with the wheel and with a build from source"
        )
    return path
