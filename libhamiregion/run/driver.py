"""Where the files of the NVIDIA driver are."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from .errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libhamiregion.errors import PathLike

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"

_RTLD_DI_LINKMAP = 2


@attrs.frozen
class Driver:
    """The two files through which programs reach the driver.

    Attributes:
        cuda: libcuda.so.1, absolute.
        nvml: libnvidia-ml.so.1, absolute.
        directory: Where both are, if the caller named it; None if the loader finds them.
    """

    cuda: str
    nvml: str
    directory: str | None = None


def real_name(library: str) -> str:
    """The name under which a stand-in finds the library that it stands for."""
    return library.replace(".so", "-real.so")


def search_path(text: str) -> list[str]:
    """The directories in LD_LIBRARY_PATH; an empty one is the working directory."""
    return re.split("[:;]", text) if text else []


def find_driver(directory: PathLike | None, directories: Sequence[str]) -> Driver:
    """Find the driver's files.

    Args:
        directory: Where they are; None asks the loader.
        directories: Those of the program's LD_LIBRARY_PATH, which the loader searches first.

    Raises:
        LaunchError: They are not there.
    """
    if directory is not None:
        place = os.path.abspath(directory)  # noqa: PTH100 (a link stays the link that was named)
        cuda, nvml = (_behind_stand_in(f"{place}/{name}") for name in (CUDA, NVML))
        for path in (cuda, nvml):
            if not Path(path).is_file():
                raise LaunchError(f"no NVIDIA driver in {place}: {path} is missing")
        return Driver(cuda, nvml, place)
    return Driver(_find(CUDA, directories), _find(NVML, directories))


def _find(name: str, directories: Sequence[str]) -> str:
    for entry in directories:
        path = f"{os.path.abspath(entry)}/{name}"  # noqa: PTH100
        if Path(path).is_file():
            return _behind_stand_in(path)
    found = _loaded_from(name)
    if found is None:
        raise LaunchError(
            f"no NVIDIA driver: the loader does not find {name}; install the driver, or name the "
            "directory of its libraries (--driver DIR)"
        )
    return _behind_stand_in(found)


def _loaded_from(name: str) -> str | None:
    """The file that the loader takes for a name; None if there is none.

    The loader's cache has no interface but the loader itself.
    """
    try:
        handle = ctypes.CDLL(name)._handle
    except OSError:
        return None
    loader = ctypes.CDLL(None)
    try:
        # struct link_map begins with the address and the name, which is absolute here.
        entry = ctypes.POINTER(ctypes.c_void_p)()
        if loader.dlinfo(ctypes.c_void_p(handle), _RTLD_DI_LINKMAP, ctypes.byref(entry)) != 0:
            return None
        path = ctypes.string_at(entry[1]) if entry[1] else b""
        return os.fsdecode(path) if path.startswith(b"/") else None
    finally:
        loader.dlclose(ctypes.c_void_p(handle))


def _behind_stand_in(path: str) -> str:
    """The driver's own file, where a run's stand-in was found in its place."""
    file = Path(path)
    real = file.with_name(real_name(file.name))
    return str(real.readlink()) if real.is_symlink() else path
