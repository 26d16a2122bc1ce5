"""What tests store into files goes into those very files, wherever links lead."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.region_file import RegionFile, RegionFileFactory, patch, truncate

from libhamiregion import Layout


@pytest.mark.parametrize(
    "deed",
    [
        lambda path: truncate(path, 0),
        lambda path: patch(path, 0, b"x"),
        lambda path: RegionFile(path, Layout.V1_2).put("magic", 1),
        lambda path: RegionFile(path, Layout.V1_2).resize(0),
    ],
    ids=["truncate", "patch", "put", "resize"],
)
def test_no_deed_follows_a_link_or_waits_at_a_pipe(
    deed: Callable[[Path], None], tmp_path: Path, region_file: RegionFileFactory
) -> None:
    victim = region_file()
    content = victim.content()
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(victim.path)
    os.mkfifo(pipe)
    for path in (link, pipe):
        with pytest.raises(OSError, match=r"symbolic link|No such device"):
            deed(path)
    assert victim.content() == content
    deed(victim.path)
    assert victim.content() != content
