"""Use the wheel for aarch64 on another machine, under qemu-user.

Debian's Python for arm64 is unpacked below a temporary directory, with the wheel from dist/ (by
build_wheels.py) and what the tests need; then the quick tests run. Standard library only.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from check_wheel import ENVIRONMENT, QUICK_TESTS, ROOT, CheckFailed, run
from debian_packages import DebianPackages, NoPackages

EMULATOR = "qemu-aarch64"
# Of the release that DebianPackages has.
PYTHON = "3.11"
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (28, 17)] + ["manylinux2014_aarch64"]


def make_python(work: Path) -> Path:
    """A command that is a Python for arm64, with the environment's packages in work/site."""
    packages = DebianPackages(work / "debian", "arm64")
    # The second is what numpy is linked with.
    packages.download_with_dependencies(f"python{PYTHON}", "libstdc++6")
    packages.unpack(work / "root")
    python = work / "python"
    python.write_text(
        f'#!/bin/sh\nexec {EMULATOR} -L {work}/root {work}/root/usr/bin/python{PYTHON} "$@"\n'
    )
    python.chmod(0o755)
    return python


def install(wheel: Path, work: Path, python: Path) -> None:
    """The wheel and what its tests need, for arm64, into work/site."""
    site = work / "site"
    tools = work / "tools"
    run([sys.executable, "-m", "venv", tools], work)
    pip: list[str | Path] = [tools / "bin/python", "-m", "pip"]
    run([*pip, "install", "--quiet", "--upgrade", "pip>=25.1"], work)
    run(
        [
            *(*pip, "install", "--quiet", "--target", site, "--only-binary=:all:"),
            *("--python-version", PYTHON, "--implementation", "cp"),
            *(word for each in PLATFORMS for word in ("--platform", each)),
            *(f"{wheel}[all]", "--group", f"{ROOT / 'pyproject.toml'}:test"),
        ],
        work,
    )
    # What tests start with sys.executable has to be emulated as well.
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(python)!r}\n")
    ENVIRONMENT["PYTHONPATH"] = str(site)


def check(work: Path) -> str:
    """What pytest says last."""
    if shutil.which(EMULATOR) is None:
        raise CheckFailed(f"needs {EMULATOR} (on Debian: apt install qemu-user)")
    wheels = sorted((ROOT / "dist").glob("*-manylinux*_aarch64.whl"))
    if not wheels:
        raise CheckFailed("there is no wheel for aarch64 in dist/; tools/build_wheels.py makes it")
    print("getting Debian's Python for arm64, and packages for it", flush=True)
    python = make_python(work)
    install(wheels[-1], work, python)
    place = work / "place"
    ignored = shutil.ignore_patterns("__pycache__", "build")
    shutil.copytree(ROOT / "tests", place / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", place)
    print(f"testing {wheels[-1].name}, emulated", flush=True)
    pytest: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return run([*pytest, "--timeout=600", *QUICK_TESTS], place).strip().splitlines()[-1]


def main() -> int:
    """0 if the wheel is well."""
    with tempfile.TemporaryDirectory(prefix="libhamiregion-aarch64-") as name:
        try:
            print(f"CPython {PYTHON}, aarch64: {check(Path(name))}")
        except (CheckFailed, NoPackages, subprocess.TimeoutExpired) as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
