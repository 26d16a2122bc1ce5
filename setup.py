"""The part of the build that pyproject.toml cannot say.

The extension and its abi3 tag, and the libraries that give a CUDA program a region to live in.
"""

import functools
import os
import re
import shlex
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

# Every path of the build is relative to this directory, whatever the caller's is.
os.chdir(Path(__file__).resolve().parent)

REPOSITORY = "https://github.com/libhamiregion/libhamiregion"

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

CORE = "csrc"
LIBRARIES = "libhamiregion/run/lib"
NAMES = (CUDA_STAND_IN, NVML_STAND_IN, PRELOADED) = (
    "libcuda-standin.so",
    "libnvidia-ml-standin.so",
    "libhamiregion-preload.so",
)

# The parts that not all of the libraries have.
ONLY_PRELOAD = {"dlsym", "nvml_answers"}
FOR_NVML = {"budget", "complain", "find", "nvml_answers"}

COMPILE_OPTIONS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-pthread",
    "-Wall",
    "-Wextra",
)
LINK_OPTIONS = (
    # Never unloaded: threads, fork handlers and a signal handler of ours may be in use.
    "-Wl,-z,defs,-z,nodelete,-z,now,-z,relro",
    # A hook is what this library has under its name, whoever else has one of that name.
    "-Wl,-Bsymbolic",
    "-Wl,--gc-sections",
)
LINK_LIBRARIES = ("-pthread", "-ldl")


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


@functools.cache
def _has_cuda() -> bool:
    """Whether NVIDIA's driver, which is for glibc alone, can be where this will run."""
    # By the compiler, which may be one for another machine. Any header of libc defines __GLIBC__;
    # those of the compiler itself do not.
    source = "#include <limits.h>\nlibc: __GLIBC__\n"
    command = [*_compiler(), "-E", "-P", "-x", "c", "-"]
    seen = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    machine = sysconfig.get_platform().rsplit("-", 1)[-1]
    return re.search(r"libc: \d", seen.stdout) is not None and machine in {"x86_64", "aarch64"}


def _readme() -> str:
    """The README with links that lead somewhere from wherever it is shown."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\])\((?!https:)", rf"\1({REPOSITORY}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^]]+\])\((?!https:|#)", rf"\1({REPOSITORY}/blob/main/", text)


class BuildLibraries(build_ext):
    """Builds the extension, and beside it the preload and the stand-ins."""

    def run(self) -> None:
        """Build all of it, the objects of the libraries while the extension is compiled."""
        if not _has_cuda():
            super().run()
            return
        with ThreadPoolExecutor(1) as beside:
            objects = beside.submit(self._compile_objects)
            super().run()
        self._build_libraries(objects.result())

    def get_outputs(self) -> list[str]:
        """What was built, for the wheel's list of files."""
        return [*super().get_outputs(), *self._library_paths().values()]

    def _library_paths(self) -> dict[str, str]:
        root = Path("." if self.inplace else self.build_lib) / LIBRARIES
        return {name: str(root / name) for name in NAMES} if _has_cuda() else {}

    def _build_libraries(self, objects: Mapping[str, str]) -> None:
        core = [path for name, path in objects.items() if "/" not in name]
        own = {name.removeprefix("preload/"): path for name, path in objects.items() if "/" in name}
        paths = self._library_paths()
        for stand_in, name, parts in (
            (CUDA_STAND_IN, "libcuda", own.keys() - ONLY_PRELOAD),
            (NVML_STAND_IN, "libnvidia-ml", FOR_NVML),
        ):
            real = self._empty_library(f"{name}-real.so.1")
            self._link(
                paths[stand_in],
                [*core, *(own[part] for part in sorted(parts))],
                [f"-Wl,-soname,{name}.so.1", "-Wl,--no-as-needed", real, "-Wl,--as-needed"],
            )
        self._link(paths[PRELOADED], [*core, *(own[part] for part in sorted(own))])

    def _compile_objects(self) -> dict[str, str]:
        """Compile every source of both directories.

        Returns:
            The objects, by the names of their sources below csrc, without suffix.
        """
        macros = [f"-D{name}={value}" for name, value in self.extensions[0].define_macros]
        headers = [*Path(CORE).glob("**/*.h"), Path("setup.py")]
        newest_header = max(path.stat().st_mtime for path in headers)
        objects = {}
        for source in sorted(Path(CORE).glob("**/*.c")):
            name = source.relative_to(CORE).with_suffix("").as_posix()
            target = Path(self.build_temp, "preload", f"{name}.o")
            objects[name] = str(target)
            newest = max(newest_header, source.stat().st_mtime)
            if not self.force and target.exists() and target.stat().st_mtime > newest:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            options = [*COMPILE_OPTIONS, *macros, *shlex.split(os.environ.get("CFLAGS", ""))]
            self.spawn([*_compiler(), *options, "-c", str(source), "-o", str(target)])
        return objects

    def _empty_library(self, soname: str) -> str:
        """A library without content, so that a stand-in can name the one that it needs."""
        path = str(Path(self.build_temp, soname))
        # Zig takes a command without any input for something else.
        self._link(path, ["-x", "c", os.devnull], [f"-Wl,-soname,{soname}"])
        return path

    def _link(self, target: str, objects: list[str], options: Sequence[str] = ()) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        more = [*options, *LINK_OPTIONS, *shlex.split(os.environ.get("LDFLAGS", ""))]
        self.spawn([*_compiler(), "-shared", "-o", target, *objects, *more, *LINK_LIBRARIES])


setup(
    long_description=_readme(),
    long_description_content_type="text/markdown",
    cffi_modules=["libhamiregion/_build.py:ffi"],
    cmdclass={"build_ext": BuildLibraries},
    # Free-threaded interpreters have no stable ABI: a wheel of theirs is for one version.
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
