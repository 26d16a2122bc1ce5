"""Take the picture of `hamiregion show` in the README: docs/images/demo.svg.

    python docs/capture.py

The region is that of `hamiregion demo`, with its real processes; only the terminal is rich's
recorder instead of a screen.
"""

from __future__ import annotations

import io
import re
import tempfile
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from libhamiregion import open_region
from libhamiregion.cli.demo import crew
from libhamiregion.cli.show import region_page
from libhamiregion.cli.terminal import draw_page

COLUMNS = 88
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
    with (
        tempfile.TemporaryDirectory(prefix="hamiregion-") as directory,
        crew(f"{directory}/usage.cache") as workers,
        open_region(workers.path) as region,
    ):
        deadline = time.monotonic() + 20
        while workers.granted < 48:
            assert time.monotonic() < deadline, "the workers do not get on"
            time.sleep(0.1)
            workers.check()
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
        console.print(draw_page(region_page(region.snapshot()), console.width))
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
