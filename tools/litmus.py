"""Run the litmus tests of the core's memory orders on AArch64 with herd7.

Each file in `docs/models/litmus/` says in its first comment what herd7 has to observe: "Never" is a
proof for all executions that Arm's model allows; "Sometimes" shows that the test can see what it
looks for.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "docs/models/litmus"
SECONDS_EACH = 600


def observed(herd7: str, test: Path) -> str:
    """What herd7 says of a test: Never, Sometimes, Always, or nothing where it fails."""
    done = subprocess.run(
        [herd7, test], capture_output=True, text=True, timeout=SECONDS_EACH, check=False
    )
    found = re.search(r"^Observation \S+ (\w+) ", done.stdout, re.MULTILINE)
    return found[1] if found else f"an error: {done.stderr.strip()}"


def main() -> int:
    """Run them all; 0 if each is as it says."""
    herd7 = shutil.which("herd7")
    if herd7 is None:
        print("needs herd7; Debian's newest suite has it: apt install herdtools7", file=sys.stderr)
        return 1
    wrong = 0
    for test in sorted(TESTS.glob("*.litmus")):
        expected = re.search(r"\(\* expect: (\w+) \*\)", test.read_text(encoding="ascii"))
        assert expected is not None, f"{test.name} does not say what to expect"
        seen = observed(herd7, test)
        print(f"{test.stem}: {seen}", flush=True)
        if seen != expected[1]:
            print(f"{test.stem} should be {expected[1]}", file=sys.stderr)
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
