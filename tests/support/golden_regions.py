"""The golden regions: what libvgpu wrote, and what it said they hold."""

import gzip
import json
from pathlib import Path
from typing import Any

import attrs

from libhamiregion import Layout

DIRECTORY = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.name.removesuffix(".cache.gz") for path in DIRECTORY.glob("*.cache.gz"))


@attrs.frozen
class GoldenRegion:
    """A golden file, unpacked, and its JSON."""

    name: str
    path: Path
    expected: dict[str, Any]

    @property
    def layout(self) -> Layout:
        return Layout(self.expected["layout"])


def unpack(name: str, directory: Path) -> GoldenRegion:
    path = directory / f"{name}.cache"
    path.write_bytes(gzip.decompress((DIRECTORY / f"{name}.cache.gz").read_bytes()))
    expected = json.loads((DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))
    return GoldenRegion(name, path, expected)
