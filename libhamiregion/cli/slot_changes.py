"""What the verbs that edit one process's slot answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .output import write, write_json
from .wording import status_word

if TYPE_CHECKING:
    from libhamiregion import Region, SlotChange


def answer_status(region: Region, change: SlotChange, *, dry_run: bool, as_json: bool) -> None:
    """Tell how a process's status has changed."""
    if as_json:
        write_json(
            {
                "path": region.path,
                "layout": region.layout.value,
                "dry_run": dry_run,
                "pid": change.pid,
                "before": change.before,
                "after": change.after,
            }
        )
        return
    words = f"process {change.pid}: {status_word(change.before)} -> {status_word(change.after)}"
    write(f"{words}{' (unchanged)' if change.before == change.after else ''}\n")
    if dry_run:
        write("dry run: nothing was written\n")
