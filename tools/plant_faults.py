"""Plant the faults of faults.toml in a copy of HEAD, one at a time: the named tests must see each.

    python tools/plant_faults.py [1a 3b ...]

Prints the test that failed, or SURVIVED; the exit status is 1 if one survived. A fault whose old
text is not in its file exactly once is an error. Needs Python 3.11. As root, run it by
`tools/harmless`, as all that runs tests of faulty code.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

TREE = Path(__file__).resolve().parents[1]
NOT_TRIED = {"DOES NOT APPLY", "DOES NOT COMPILE"}


def first_failure(root: Path, tests: list[str]) -> str | None:
    """Build and run tests; return the first that fails, None if all pass."""
    # Programs in C compile the core themselves.
    if not all("test_c_core" in each for each in tests) or not (root / ".venv").exists():
        make = ["make", "--silent", ".venv/.installed"]
        if subprocess.run(make, cwd=root, check=False, capture_output=True).returncode:
            return "DOES NOT COMPILE"
    command = [".venv/bin/python", "-m", "pytest", "-q", "-x", "-n", "0", "--timeout=120"]
    ran = subprocess.run([*command, *tests], cwd=root, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+::\S+)", ran.stdout, re.MULTILINE)
    if found is None:
        raise SystemExit(ran.stdout + ran.stderr)
    return found[1]


def seen_by(root: Path, fault: dict) -> str | None:
    """Plant a fault; return the test that sees it, which must pass without it."""
    path = root / fault["file"]
    sound = path.read_text(encoding="utf-8")
    if sound.count(fault["old"]) != 1:
        return "DOES NOT APPLY"
    path.write_text(sound.replace(fault["old"], fault["new"]), encoding="utf-8")
    try:
        failed = first_failure(root, fault["tests"])
    finally:
        path.write_text(sound, encoding="utf-8")
    # A parameter can have spaces in it, at which its name was cut.
    tried = failed and failed not in NOT_TRIED
    if tried and first_failure(root, [failed.partition("[")[0]]):
        raise SystemExit(f"{fault['name']}: {failed} fails without the fault, too")
    return failed


def main() -> int:
    """Plant the faults asked for; 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="faults; all without")
    names = parser.parse_args().names
    faults = tomllib.loads((TREE / "tools/faults.toml").read_text(encoding="utf-8"))["fault"]
    survived = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=TREE, check=True, stdout=-1)
        subprocess.run(["tar", "--extract"], cwd=name, input=archive.stdout, check=True)
        for fault in faults:
            if not names or fault["name"] in names:
                failed = seen_by(Path(name), fault)
                survived += failed in {None, *NOT_TRIED}
                print(f"{fault['name']:3} {failed or 'SURVIVED'}: {fault['what']}", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
