"""Which processes map which file, after each of many changes."""

import random
from collections import defaultdict

from libhamiregion.node.file_users import FileUsers, changes_of_use, users_by_file
from libhamiregion.node.matching import HostProcess
from libhamiregion.node.process_entry import Entry
from libhamiregion.node.procfs import Mapping

FILES = range(12)


def process(pid: int, start_time: int) -> HostProcess:
    return HostProcess(pid, start_time, (pid, 1), 0, "root", "python", None)


def mapping(inode: int, *, writable: bool = True) -> Mapping:
    return Mapping(1, inode, 4096, 8192, 4096, writable, f"/region-{inode}", False)


def entry(pid: int, start_time: int, files: list[int]) -> Entry:
    maps = tuple(mapping(inode) for inode in files)
    return Entry(start_time, process(pid, start_time), mappings=maps)


def of_entries(entries: dict[int, Entry]) -> dict[tuple[int, int], FileUsers]:
    """The users of all files, out of nothing but the entries."""
    found = defaultdict(list)
    for pid in sorted(entries):
        each = entries[pid]
        for file in each.mappings:
            assert each.process is not None
            found[file.device, file.inode].append((each.process, each.namespace, file))
    return {file: tuple(users) for file, users in found.items()}


def changed(generator: random.Random, before: dict[int, Entry], turn: int) -> dict[int, Entry]:
    """The processes after some have begun, ended, gone on, and mapped other files."""
    after = dict(before)
    for pid in generator.sample(range(1, 40), 6):
        known = after.get(pid)
        move = generator.randrange(6)
        files = generator.sample(FILES, generator.choice([0, 0, 1, 1, 2, 3]))
        if move == 0:
            after.pop(pid, None)
        elif move == 1:
            # A kernel thread has no process, and can get the pid of one that had.
            after[pid] = Entry(turn)
        elif move == 2 and known is not None:
            after[pid] = Entry(
                known.start_time_ticks,
                known.process,
                mappings=known.mappings,
                namespace=known.namespace,
            )
        elif move == 3 and known is not None and known.process is not None:
            after[pid] = Entry(
                known.start_time_ticks,
                known.process,
                mappings=known.mappings,
                namespace=f"pid:[{turn}]",
            )
        else:
            after[pid] = entry(pid, turn, files)
    return after


def test_the_users_of_all_files_are_right_after_each_change() -> None:
    generator = random.Random(18)
    entries: dict[int, Entry] = {}
    users: dict[tuple[int, int], FileUsers] = {}
    kept = 0
    for turn in range(600):
        after = changed(generator, entries, turn)
        changes = changes_of_use(entries, after)
        now = users_by_file(users, changes)
        assert now == of_entries(after)
        # What a change is not about is not made again, nor compared.
        about = {
            (file.device, file.inode)
            for change in changes
            for each in change
            if each is not None
            for file in each.mappings
        }
        for file, those in users.items():
            if file not in about:
                assert now[file] is those
                kept += 1
        entries, users = after, now
    assert kept > 600


def test_who_only_goes_on_changes_nothing() -> None:
    known = entry(7, 1, [3])
    later = Entry(1, known.process, mappings=known.mappings)
    assert changes_of_use({7: known}, {7: later}) == []
    assert changes_of_use({7: known}, {7: later, 8: entry(8, 2, [])}) == []
    begun = entry(8, 2, [3])
    assert changes_of_use({7: known}, {7: later, 8: begun}) == [(None, begun)]
    assert changes_of_use({7: known}, {}) == [(known, None)]
