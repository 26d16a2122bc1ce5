"""Which processes map which file, kept up to date by what has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .matching import HostProcess
    from .process_entry import Entry
    from .processes import FileIdentity
    from .procfs import Mapping as FileMapping

#: The processes that map a file, by pid; with each its pid namespace, and what it maps.
FileUsers: TypeAlias = "tuple[tuple[HostProcess, str | None, FileMapping], ...]"
#: A process before and after a refresh; None where it was not there.
Change: TypeAlias = "tuple[Entry | None, Entry | None]"


def changes_of_use(before: Mapping[int, Entry], after: Mapping[int, Entry]) -> list[Change]:
    """Find the processes that map files, or did, and have begun, ended or changed that."""
    changes = [(before.get(pid), now) for pid, now in after.items() if before.get(pid) is not now]
    gone = [(was, None) for pid, was in before.items() if pid not in after]
    return [change for change in (*changes, *gone) if _is_of_use(*change)]


def _is_of_use(was: Entry | None, now: Entry | None) -> bool:
    if was is not None and now is not None and now.is_as_used(was):
        return False
    return any(each is not None and each.mappings for each in (was, now))


def users_by_file(
    before: Mapping[FileIdentity, FileUsers], changes: Sequence[Change]
) -> dict[FileIdentity, FileUsers]:
    """Tell who maps which file after some changes.

    Costs what the changed files have users. Of all others the users stay the same object.
    """
    found = dict(before)
    files = {
        (mapping.device, mapping.inode)
        for change in changes
        for entry in change
        if entry is not None
        for mapping in entry.mappings
    }
    changed = {
        entry.process.pid
        for change in changes
        for entry in change
        if entry is not None and entry.process is not None
    }
    users = {
        file: [each for each in before.get(file, ()) if each[0].pid not in changed]
        for file in files
    }
    for _, now in changes:
        if now is not None and now.process is not None:
            for mapping in now.mappings:
                users[mapping.device, mapping.inode].append((now.process, now.namespace, mapping))
    for file, those in users.items():
        if those:
            found[file] = tuple(sorted(those, key=lambda each: each[0].pid))
        else:
            found.pop(file, None)
    return found
