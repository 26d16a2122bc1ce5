"""Build the wheel once, then use it as its users will: `make wheel`.

For the oldest and the newest CPython from 3.10 to 3.15 found on this machine, or with --all for
each: a clean virtual environment, that one wheel from outside the source tree, the tests of
regions, and a user's own file under mypy --strict.
Standard library only, so that any Python >= 3.10 can start it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SUPPORTED = [(3, minor) for minor in range(10, 16)]
PARTS = "create edits golden guard layouts limiter lock reap region region_set slots tables undo"
QUICK_TESTS = [*(f"tests/region/test_{part}.py" for part in PARTS.split()), "-m", "not slow"]
SECONDS_PER_COMMAND = 600

# An environment variable that only a test build's core knows.
OF_TESTS = b"HAMIREGION_INITIAL_PID_NAMESPACE"

IN_WHEEL = [
    "libhamiregion/py.typed",
    "libhamiregion/_native.abi3.so",
    "libhamiregion/run/lib/libcuda-standin.so",
    "libhamiregion/run/lib/libnvidia-ml-standin.so",
    "libhamiregion/run/lib/libhamiregion-preload.so",
    "libhamiregion/report/page.html",
    "libhamiregion/report/page.css",
    "libhamiregion/cli/answers.schema.json",
    "licenses/LICENSE",
]
# What only a clone has a use for. Everything else that git knows is in the sdist.
NOT_IN_SDIST = (".github/", ".gitignore", ".pre-commit-config.yaml")

# Nothing of the caller's may reach the wheel or hide that a file is missing from it.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in {"HAMIREGION_TEST_BUILD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS"}
} | {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # As URLs: pip splits these variables at spaces.
    "PIP_CONSTRAINT": (ROOT / "constraints.txt").as_uri(),
    "PIP_BUILD_CONSTRAINT": (ROOT / "constraints.txt").as_uri(),
}


class CheckFailed(Exception):
    """The wheel, or a command that used it, is not as promised."""


def run(command: list[str | Path], cwd: Path) -> str:
    """The command's output, both streams; CheckFailed with all of it where it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_PER_COMMAND,
        check=False,
    )
    if done.returncode != 0:
        line = " ".join(str(word) for word in command)
        raise CheckFailed(f"exit status {done.returncode}: {line}\n{done.stdout}")
    return done.stdout


def require(names: list[str], found: list[str], where: str) -> None:
    """Each of names must end one of the names found."""
    missing = [name for name in names if not any(entry.endswith(name) for entry in found)]
    if missing:
        raise CheckFailed(f"{where} lacks {', '.join(missing)}")


def tracked() -> list[str]:
    """What git knows of this tree, but for what only a clone has a use for."""
    listed = run(["git", "ls-files"], ROOT).splitlines()
    return [path for path in listed if not path.startswith(NOT_IN_SDIST)]


def build(work: Path, dist: Path) -> tuple[Path, Path]:
    """The wheel and the unpacked sdist that it is built from; both are looked into."""
    builder = work / "builder"
    venv.create(builder, with_pip=True)
    run([builder / "bin/pip", "install", "--quiet", "build"], work)
    shutil.rmtree(dist, ignore_errors=True)
    run([builder / "bin/python", "-m", "build", "--outdir", dist, ROOT], work)

    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        require([f"/{path}" for path in tracked()], archive.getnames(), sdist.name)
        archive.extractall(work)
    unpacked = work / sdist.name.removesuffix(".tar.gz")
    (wheel,) = dist.glob("*.whl")
    if "-cp310-abi3-" not in wheel.name:
        raise CheckFailed(f"{wheel.name} is not tagged cp310-abi3")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        cores = [archive.read(name) for name in names if name.endswith(".so")]
    require(IN_WHEEL, names, wheel.name)
    stray = [name for name in names if not name.startswith("libhamiregion")]
    if stray:
        raise CheckFailed(f"{wheel.name} would install {', '.join(stray)}")
    if any(OF_TESTS in core for core in cores):
        raise CheckFailed(f"{wheel.name} has the core of a test build")
    return wheel, unpacked


def candidates() -> list[Path]:
    """Executables that may be a supported CPython: this one, those on PATH, those of pyenv."""
    found = [Path(sys.executable)]
    for major, minor in SUPPORTED:
        on_path = shutil.which(f"python{major}.{minor}")
        found += [Path(on_path)] if on_path else []
    pyenv = shutil.which("pyenv")
    root = Path.home() / ".pyenv"
    if pyenv:
        root = Path(subprocess.check_output([pyenv, "root"], text=True).strip())
    found += sorted(root.glob("versions/3.1*/bin/python"))
    return found


def interpreters() -> dict[tuple[int, int], Path]:
    """One working interpreter for each supported version that is here."""
    # base_prefix: a virtual environment of a virtual environment is not a clean one.
    probe = (
        "import ensurepip, json, os, sys, sysconfig; v = sys.version_info[:2];"
        "usable = sys.implementation.name == 'cpython'"
        " and not sysconfig.get_config_var('Py_GIL_DISABLED');"
        "exe = os.path.join(sys.base_prefix, 'bin', 'python%d.%d' % v);"
        "print(json.dumps([usable, v, exe if os.path.exists(exe) else sys.executable]))"
    )
    chosen: dict[tuple[int, int], Path] = {}
    for candidate in candidates():
        # A pyenv shim exists for each version but runs only those that are switched on.
        done = subprocess.run(
            [candidate, "-c", probe], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            continue
        usable, (major, minor), executable = json.loads(done.stdout)
        if usable and (major, minor) in SUPPORTED:
            chosen.setdefault((major, minor), Path(executable))
    return dict(sorted(chosen.items()))


def check(python: Path, name: str, wheel: Path, sdist: Path, work: Path, *, types: bool) -> str:
    """Install the wheel in a clean environment of this interpreter, and use it there."""
    started = time.monotonic()
    place = work / name
    env = place / "env"
    place.mkdir()
    run([python, "-m", "venv", env], place)
    mine = env / "bin/python"
    pip: list[str | Path] = [mine, "-m", "pip", "install", "--quiet"]
    run([*pip, "--upgrade", "pip>=25.1"], place)  # the first that knows dependency groups
    tools = ["mypy"] if types else []
    group = f"{ROOT / 'pyproject.toml'}:test"
    run([*pip, f"{wheel}[all]", "--group", group, *tools], place)

    where = "import libhamiregion as h, libhamiregion._native as n; print(h.__file__, n.__file__)"
    for imported in run([mine, "-c", where], place).split():
        if not Path(imported).is_relative_to(env) or "site-packages" not in imported:
            raise CheckFailed(f"{name}: {imported} does not come from the wheel")

    example = shutil.copy(HERE / "user_example.py", place)
    run([mine, example, place], place)
    if types:
        # Not the project's own configuration: a user has none.
        run([mine, "-m", "mypy", "--strict", "--config-file=", example], place)
        for program in sorted((ROOT / "examples").glob("*.py")):
            copy = shutil.copy(program, place)
            run([mine, "-m", "mypy", "--strict", "--config-file=", copy], place)

    # All tests of the sdist find what they read when they are loaded. Not by -m, which would import
    # the package that lies there.
    run([env / "bin/pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"], sdist)

    # The tests and pytest's configuration, without the package that lies beside them.
    ignored = shutil.ignore_patterns("__pycache__", "build")
    shutil.copytree(ROOT / "tests", place / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", place)
    output = run([mine, "-m", "pytest", "-q", "-p", "no:cacheprovider", *QUICK_TESTS], place)
    summary = output.strip().splitlines()[-1]
    typed = ", mypy --strict" if types else ""
    return f"CPython {name}: {summary}{typed} ({time.monotonic() - started:.0f} s with setup)"


def main() -> int:
    """Build, check on every interpreter, print one line for each; 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=2, help="interpreters at a time (default: 2)")
    parser.add_argument("--all", action="store_true", help="test every interpreter")
    asked = parser.parse_args()

    found = interpreters()
    if not asked.all:
        found = {
            version: found[version] for version in found if version in (min(found), max(found))
        }
    for version in SUPPORTED:
        name = ".".join(map(str, version))
        print(f"CPython {name}: {found.get(version, 'not on this machine, not tested')}")
    with tempfile.TemporaryDirectory(prefix="libhamiregion-wheel-") as directory:
        work = Path(directory)
        try:
            wheel, sdist = build(work, ROOT / "dist")
            print(f"built {wheel.name}, from the sdist", flush=True)
        except CheckFailed as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1

        failed = not found
        with ThreadPoolExecutor(asked.jobs) as pool:
            # The oldest and the newest: what mypy sees of the standard library differs most there.
            checks = [
                pool.submit(
                    check,
                    python,
                    ".".join(map(str, version)),
                    wheel,
                    sdist,
                    work,
                    types=version in (min(found), max(found)),
                )
                for version, python in found.items()
            ]
            for outcome in checks:
                try:
                    print(outcome.result(), flush=True)
                except (CheckFailed, subprocess.TimeoutExpired) as error:
                    failed = True
                    print(f"FAILED: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
