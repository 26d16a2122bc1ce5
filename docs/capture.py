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

from libhamiregion import create_region, open_region
from libhamiregion.cli.demo import ROLES, UUIDS
from libhamiregion.cli.demo_crew import GIB, Crew
from libhamiregion.cli.render import region_view

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
    with tempfile.TemporaryDirectory(prefix="hamiregion-") as directory:
        path = f"{directory}/usage.cache"
        create_region(path, memory_limits=(8 * GIB, 4 * GIB), sm_limits=(50, 30), uuids=UUIDS)
        with (
            open_region(path) as region,
            Crew(path, ROLES, Path(directory) / "workers.log") as crew,
        ):
            deadline = time.monotonic() + 20
            while not all(worker.granted > 12 for worker in crew.workers):
                assert time.monotonic() < deadline, "the workers do not get on"
                crew.listen(0.1)
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
            console.print(region_view(region.snapshot(), console.width))
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
