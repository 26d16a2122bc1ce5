"""README.md of the chart: the table of its values, from the comments in values.yaml."""

from __future__ import annotations

import re
from pathlib import Path

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "libhamiregion"
FILE = CHART / "README.md"
BEGIN = "<!-- The rest is made from values.yaml: make texts -->\n"


def rows() -> list[tuple[str, str, str]]:
    """Each value that has a comment: its name, default and comment."""
    found, comments, names = [], [], []
    for line in (CHART / "values.yaml").read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"( *)([A-Za-z]+):(.*)", line)
        if line.lstrip().startswith("#"):
            comments.append(line.lstrip("# "))
        elif match:
            names[len(match[1]) // 2 :] = [match[2]]
            if comments:
                default = match[3].strip() or "…"
                found.append((".".join(names), default, " ".join(comments)))
            comments = []
        elif not line:
            comments = []
    return found


def text() -> str:
    """The whole page, with the part above the table as it is."""
    head, marker, _ = FILE.read_text(encoding="utf-8").partition(BEGIN)
    if not marker:
        raise SystemExit(f"{FILE.name} has lost the line {BEGIN!r}")
    lines = [f"| `{name}` | `{default}` | {comment} |\n" for name, default, comment in rows()]
    table = "| value | default | meaning |\n|---|---|---|\n"
    return f"{head}{BEGIN}\n{table}{''.join(lines)}"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
