"""Take the moving picture of the README: docs/images/demo.svg.

    python tools/capture.py

`hamiregion show --watch` of a region with real processes, in which a limit is changed. Region and
processes are those of a fake node; only the terminal is rich's recorder instead of a screen. The
pictures follow each other by the style sheet alone; who wants no motion sees the last one.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from libhamiregion import open_region
from libhamiregion.cli.show import region_page
from libhamiregion.cli.terminal import draw_page
from libhamiregion.testing import FakeNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COLUMNS = 88
SHOWN = "/usr/local/vgpu/containers/0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_train/usage.cache"
PICTURE = Path(__file__).parents[1] / "docs/images" / "demo.svg"

# The fonts of whoever looks: a picture in a README must not load any from elsewhere.
SVG = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, monospace"
)


STEPS_BEFORE, STEPS_AFTER = 4, 6
SECONDS_PER_FRAME = 1.2
# What rich's format is filled with, once per frame and once around all of them.
PARTS = ("styles", "backgrounds", "matrix", "lines")
FRAME = "\0".join(f"{{{part}}}" for part in PARTS)
AROUND = SVG
for part in PARTS:
    AROUND = AROUND.replace(f"{{{part}}}", f"@{part}@")


def new_console() -> Console:
    return Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
        markup=False,
        highlight=False,
    )


def frame_of(path: Path, said: Sequence[str]) -> Console:
    """What the terminal shows now, with what was typed in another one below it."""
    console = new_console()
    with open_region(path) as region:
        # Where it lies on this machine is of no interest.
        snapshot = attrs.evolve(region.snapshot(), path=SHOWN)
    console.print(draw_page(region_page(snapshot), console.width))
    console.print()
    for line in (*said, *[""] * (3 - len(said))):
        console.print(line, style="bold" if line.startswith("$") else "")
    return console


def frames(path: Path, node: FakeNode) -> Iterator[Console]:
    for _ in range(STEPS_BEFORE):
        yield frame_of(path, ["$ "])
        node.step()
    typed = ("limits", "set", path.name, "--device", "0", "--memory", "6GiB")
    done = subprocess.run(
        [sys.executable, "-m", "libhamiregion", *typed],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    command = " ".join(["$ hamiregion", *typed]).replace(path.name, "usage.cache")
    for _ in range(STEPS_AFTER):
        yield frame_of(path, [command, done.stdout.strip()])
        node.step()


def moving(consoles: Sequence[Console]) -> str:
    """Put the frames into one picture, of which each shows one after the other."""
    title = "hamiregion show usage.cache --watch 1"
    around = consoles[0].export_svg(title=title, code_format=AROUND, unique_id="demo", clear=False)
    found = [
        console.export_svg(title=title, code_format=FRAME, unique_id=f"demo{number}").split("\0")
        for number, console in enumerate(consoles)
    ]
    share = 100 / len(found)
    whole_s = len(found) * SECONDS_PER_FRAME
    styles = [
        ".frame { visibility: hidden }",
        (
            f"@keyframes turn {{ 0%, {share:.4f}% {{ visibility: visible }}"
            f" {share + 0.0001:.4f}%, 100% {{ visibility: hidden }} }}"
        ),
        (
            "@media (prefers-reduced-motion: no-preference) {"
            f" .frame {{ animation: turn {whole_s:g}s step-end infinite }} }}"
        ),
        "@media (prefers-reduced-motion: reduce) { .last { visibility: visible } }",
    ]
    groups, lines = [], []
    for number, (style, backgrounds, matrix, clips) in enumerate(found):
        styles.append(style)
        lines.append(clips)
        last = " last" if number == len(found) - 1 else ""
        delay = f"animation-delay: {number * SECONDS_PER_FRAME:g}s"
        groups.append(f'<g class="frame{last}" style="{delay}">{backgrounds}{matrix}</g>')
    return (
        around.replace("@styles@", "\n".join(styles))
        .replace("@lines@", "".join(lines))
        .replace("@backgrounds@", "")
        .replace("@matrix@", "\n".join(groups))
    )


def main() -> None:
    with FakeNode() as node:
        container = node.add(memory_limits=("8GiB", "4GiB"), sm_limits=(50, 30), processes=4)
        for _ in range(8):
            node.step()
        assert container.region is not None
        picture = moving(list(frames(container.region, node)))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
