"""Test the wheel on Python versions that few machines have yet: `make newest-python`.

In a root directory of Debian's newest suite, which mmdebstrap makes below the cache, each of its
Pythons builds the wheel from the sdist, installs it into a clean environment, and runs the unit,
corruption and property tests against it. With --free-threaded also a Python without a GIL, which
is compiled there from Debian's source. Needs root. Standard library only.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

from check_wheel import ROOT, CheckFailed, run
from debian_root import DebianRoot, NoRoot

VERSIONS = ("3.14", "3.15")
FREE_THREADED = "3.14"
FREE_THREADED_PREFIX = f"/opt/python{FREE_THREADED}t"
PACKAGES = [
    *(f"python{version}{part}" for version in VERSIONS for part in ("", "-dev", "-venv")),
    # What the tests use: compilers, namespaces and keys.
    *("gcc", "libc6-dev", "make", "git", "mount", "util-linux", "procps", "openssl"),
]
# What a Python is compiled with.
FOR_COMPILING = (
    *("dpkg-dev", "pkg-config", "libbz2-dev", "libffi-dev", "liblzma-dev", "libsqlite3-dev"),
    *("libssl-dev", "zlib1g-dev"),
)
COMPILE = f"""
echo 'deb-src '$(sed -n 's/^deb //p' /etc/apt/sources.list) >/etc/apt/sources.list.d/source.list
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \\
    {" ".join(FOR_COMPILING)} >/dev/null
rm -rf /var/tmp/python && mkdir -m 777 /var/tmp/python && cd /var/tmp/python
apt-get source -qq python{FREE_THREADED}
cd python{FREE_THREADED}-*/
./configure --disable-gil --prefix={FREE_THREADED_PREFIX}.new >/dev/null
nice make -j2 >/dev/null 2>&1
make install >/dev/null 2>&1
"""
TESTS = ("tests/unit", "tests/corruption", "tests/property")
TESTS_S = 3600
SDIST = "sdist.tar.gz"
# An environment's Python, by what it says of itself.
ABOUT = (
    "import sys, sysconfig, libhamiregion as h, libhamiregion._native as n;"
    "print(sys.version.split()[0], sysconfig.get_config_var('Py_GIL_DISABLED') or 0,"
    " int(getattr(sys, '_is_gil_enabled', lambda: True)()), h.__file__, n.__file__)"
)


def make_sdist(work: Path) -> Path:
    """The sdist of this tree."""
    builder = work / "builder"
    venv.create(builder, with_pip=True)
    run([builder / "bin/pip", "install", "--quiet", "build"], work)
    run([builder / "bin/python", "-m", "build", "--sdist", "--outdir", work / "dist", ROOT], work)
    (sdist,) = (work / "dist").glob("*.tar.gz")
    return sdist


def lay_out(root: DebianRoot, sdist: Path) -> str:
    """Where the unpacked sdist lies in the root directory, alone."""
    place = root.path / "check"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copy(sdist, place / SDIST)
    with tarfile.open(sdist) as archive:
        archive.extractall(place)
    return f"/check/{sdist.name.removesuffix('.tar.gz')}"


def compile_free_threaded(root: DebianRoot) -> str:
    """The Python without a GIL, compiled unless that was done before."""
    there = root.path / FREE_THREADED_PREFIX.removeprefix("/")
    if not there.exists():
        print(f"compiling Python {FREE_THREADED} without a GIL (10 minutes of CPU)", flush=True)
        root.run("sh", "-e", "-c", COMPILE, timeout_s=3600)
        there.with_name(f"{there.name}.new").rename(there)
    return f"{FREE_THREADED_PREFIX}/bin/python{FREE_THREADED}t"


def check(root: DebianRoot, python: str, source: str, jobs: int, chosen: list[str]) -> str:
    """Build, install and test with one interpreter; what pytest says last."""
    started = time.monotonic()
    name = Path(python).name
    env = f"/check/{name}"
    root.run(python, "-m", "venv", env)
    pip = (f"{env}/bin/python", "-m", "pip")
    root.run(*pip, "install", "--quiet", "--upgrade", "pip>=25.1")
    dist = f"{env}/dist"
    root.run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, f"/check/{SDIST}")
    (wheel,) = (root.path / dist.removeprefix("/")).glob("*.whl")
    root.run(
        *(*pip, "install", "--quiet", f"{dist}/{wheel.name}[all]"),
        *("--group", f"{source}/pyproject.toml:test"),
        timeout_s=1800,
    )
    version, free, gil, *places = root.run(f"{env}/bin/python", "-c", ABOUT).split()
    if not all(place.startswith(env) for place in places):
        raise CheckFailed(f"{name}: {' '.join(places)} does not come from the wheel")
    # What tests start with -m, or read as the package, is the installed one as well.
    root.run("rm", "-rf", f"{source}/libhamiregion")
    root.run("ln", "-s", str(Path(places[0]).parent), f"{source}/libhamiregion")
    if free == "1" and gil == "1":
        raise CheckFailed(f"{name}: importing the wheel switches the GIL on")
    print(f"Python {version}{' without a GIL' if free == '1' else ''}: {wheel.name}", flush=True)
    root.run(
        *(f"{env}/bin/pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs), *chosen),
        cwd=source,
        timeout_s=TESTS_S,
        show=True,
    )
    return f"Python {version}: passed ({time.monotonic() - started:.0f} s)"


def main() -> int:
    """0 if the wheel is well on all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (default: 2)")
    parser.add_argument("--free-threaded", action="store_true", help="a Python without a GIL, too")
    parser.add_argument("tests", nargs="*", default=TESTS, help="instead of all quick ones")
    arguments = parser.parse_args()

    failed = False
    with tempfile.TemporaryDirectory(prefix="libhamiregion-newest-") as directory:
        try:
            sdist = make_sdist(Path(directory))
            root = DebianRoot(*PACKAGES)
            source = lay_out(root, sdist)
            pythons = [f"/usr/bin/python{version}" for version in VERSIONS]
            if arguments.free_threaded:
                pythons.append(compile_free_threaded(root))
        except (CheckFailed, NoRoot, subprocess.TimeoutExpired) as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
        said = []
        for python in pythons:
            try:
                said.append(check(root, python, source, arguments.jobs, list(arguments.tests)))
            except (CheckFailed, NoRoot) as error:
                failed = True
                said.append(f"FAILED: {Path(python).name}: {error}")
        shutil.rmtree(root.path / "check")
    print(*said, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
