"""Take the picture of `hamiregion show` in the README: docs/images/demo.svg.

    python docs/capture.py

The region is that of a fake node, with real processes; only the terminal is rich's
recorder instead of a screen.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import attrs
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from libhamiregion import open_region
from libhamiregion.cli.show import region_page
from libhamiregion.cli.terminal import draw_page
from libhamiregion.testing import FakeNode

COLUMNS = 88
SHOWN = "/usr/local/vgpu/containers/0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_train/usage.cache"
PICTURE = Path(__file__).parent / "images" / "demo.svg"

# Readable on a light and on a dark page alike: the picture brings its own background.
THEME = TerminalTheme(
    (24, 27, 33),
    (214, 219, 226),
    [
        (24, 27, 33),
        (236, 106, 94),
        (126, 199, 123),
        (232, 190, 96),
        (97, 164, 241),
        (198, 133, 223),
        (86, 190, 196),
        (214, 219, 226),
    ],
    None,
)

# The fonts of whoever looks: a picture in a README must not load any from elsewhere.
SVG = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, monospace"
)


def main() -> None:
    with FakeNode() as node:
        container = node.add(memory_limits=("8GiB", "4GiB"), sm_limits=(50, 30), processes=4)
        for _ in range(14):
            node.step()
        assert container.region is not None
        console = Console(
            record=True,
            width=COLUMNS,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
            markup=False,
            highlight=False,
        )
        with open_region(container.region) as region:
            # Where it lies on this machine is of no interest.
            snapshot = attrs.evolve(region.snapshot(), path=SHOWN)
        console.print(draw_page(region_page(snapshot), console.width))
    PICTURE.parent.mkdir(exist_ok=True)
    console.save_svg(
        str(PICTURE),
        title="hamiregion show usage.cache",
        theme=THEME,
        code_format=SVG,
        unique_id="demo",
    )


if __name__ == "__main__":
    main()
