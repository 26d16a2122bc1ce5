#!/usr/bin/env python3
"""Build the sdist and a wheel for each platform into dist/, and check them.

Zig, from PyPI, is the compiler for all of them: no containers, no emulation. Run it with a Python
whose headers are in a directory of their own, as those of python.org, pyenv and GitHub's actions
are; Debian's are not.
"""

import argparse
import os
import re
import stat
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

# The wheel's tag, and what Zig calls the system. libhamiregion/run/lib is only where glibc is.
PLATFORMS = {
    "manylinux_2_28_x86_64": "x86_64-linux-gnu.2.28",
    "manylinux_2_28_aarch64": "aarch64-linux-gnu.2.28",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
MUSL = {"libc.so"}
GLIBC = {
    "libc.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
}
# Links beside the stand-ins lead to the driver's own: `hamiregion run` makes them.
FROM_THE_DRIVER = {"libcuda-real.so.1", "libnvidia-ml-real.so.1"}
TOOLS = ["abi3audit", "auditwheel", "build", "cffi>=1.17", "setuptools>=77", "ziglang>=0.14"]


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """A command's output; the end of this program where it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def make_tools(directory: Path) -> Path:
    """The Python of an environment with all tools."""
    venv.create(directory, with_pip=True)
    python = directory / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", *TOOLS)
    return python


def build_wheel(python: Path, source: Path, tag: str, target: str, work: Path) -> Path:
    """Build in a copy of the sdist's files: builds leave objects behind."""
    compiler = work / f"cc-{tag}"
    compiler.write_text(f'#!/bin/sh\nexec "{python}" -m ziglang cc -target {target} "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    tree = work / tag
    run("cp", "-r", source, tree)
    machine = tag.split("_", 3)[-1]
    out = work / f"out-{tag}"
    run(
        *(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", out),
        f"--config-setting=--build-option=--plat-name={tag}",
        tree,
        env={
            "CC": str(compiler),
            "LDSHARED": f"{compiler} -shared",
            "LDFLAGS": "-s",
            # What sysconfig takes for the machine that this is built for.
            "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        },
    )
    (wheel,) = out.glob("*.whl")
    return wheel


NEEDED = """
import io, sys, zipfile
from elftools.elf.elffile import ELFFile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        if name.endswith(".so"):
            library = wheel.read(name)
            if b"HAMIREGION_INITIAL_PID_NAMESPACE" in library:
                sys.exit(f"{name} is of a test build")
            dynamic = ELFFile(io.BytesIO(library)).get_section_by_name(".dynamic")
            print(*(tag.needed for tag in dynamic.iter_tags("DT_NEEDED")))
"""


def check_wheel(python: Path, wheel: Path, tag: str) -> None:
    """The tag's promises: no newer libc, no library that is not there, only the stable ABI."""
    run(python.parent / "abi3audit", "--strict", wheel)
    needed = set(run(python, "-c", NEEDED, wheel).split())
    there = MUSL if tag.startswith("musl") else GLIBC | FROM_THE_DRIVER
    if not needed <= there:
        sys.exit(f"{wheel.name} needs {needed - there}, which is not everywhere")
    if tag.startswith("musl"):
        # auditwheel judges musl's wheels where musl is only; there are no symbol versions.
        return
    shown = " ".join(run(python.parent / "auditwheel", "show", wheel).split())
    found = re.search(r'constrains the platform tag to "manylinux_(\d+)_(\d+)_\w+"', shown)
    newest = tuple(map(int, tag.split("_")[1:3]))
    if not found or tuple(map(int, found.groups())) > newest:
        sys.exit(f"{wheel.name}: auditwheel says:\n{shown}")


def main() -> None:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tags", nargs="*", default=list(PLATFORMS), help="platforms; all of them")
    tags: list[str] = parser.parse_args().tags
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="libhamiregion-wheels-") as name:
        work = Path(name)
        python = make_tools(work / "tools")
        run(python, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, ROOT)
        sdist = max(DIST.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
        print(f"built {sdist.name}", flush=True)
        run("tar", "--extract", "--file", sdist, "--directory", work)
        for tag in tags:
            wheel = build_wheel(
                python, work / sdist.name.removesuffix(".tar.gz"), tag, PLATFORMS[tag], work
            )
            check_wheel(python, wheel, tag)
            (DIST / wheel.name).write_bytes(wheel.read_bytes())
            print(f"built {wheel.name}: {wheel.stat().st_size // 1024} KiB", flush=True)


if __name__ == "__main__":
    main()
