"""Evidence of which processes use a region, gathered apart from the calls that judge by it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from ._core import ffi, lib
from ._handle import proc_root
from .errors import new_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ._handle import Handle
    from .errors import PathLike

# How long a process's maps may take to be read.
_ASK_NS: Final = 1_000_000_000


@attrs.frozen
class ProcessAnswer:
    """The answer of a process about one file: see `ask_process`.

    Attributes:
        pids: Its pids, from the namespace of that /proc to its own; empty if not known.
        has_libvgpu: It has libvgpu mapped.
        maps_file: It maps the file for writing. False if it does not, or if that is not known.
    """

    pids: tuple[int, ...]
    has_libvgpu: bool
    maps_file: bool
    _raw: Any = attrs.field(repr=False)
    _seen: int = attrs.field(repr=False)


def ask_process(proc: int, pid: int, files: Sequence[Any]) -> tuple[ProcessAnswer, ...]:
    """Ask one process whether it maps files, and for its pids and its age.

    Takes numbers and no region, so that the thread which calls it can be given up. Reading its maps
    ends after 1 s, but a process can keep their reader waiting for ever.

    Args:
        proc: A descriptor of /proc.
        pid: The process, there.
        files: `Evidence.file` of any number of regions.

    Returns:
        One answer per file, in the same order. Any thread may take them.
    """
    asked = ffi.new("struct hr_asked_file[]", [file[0] for file in files])
    raw = ffi.new("struct hr_answer *")
    lib.hr_ask_process(proc, pid, asked, len(files), _ASK_NS, raw)
    known = tuple(raw.pids[0 : raw.levels]), bool(raw.has_libvgpu)
    return tuple(ProcessAnswer(*known, file.seen == lib.HR_MAPS, raw, file.seen) for file in asked)


class Evidence:
    """Evidence about one region, for the calls that judge its processes. Made by `Region.evidence`.

    It begins with the lock and the slots as they are. Calls that take it judge nothing that has
    changed since, read /proc no more, and learn nothing from evidence older than 5 s.

    Not to be shared by threads at the same time.

    Attributes:
        file: The file to ask processes for, as `ask_process` takes it: numbers only.
        pids: Pids, in any of their namespaces, of the processes that have to be asked; None if
            every process has to be, as for a slot without a pid.
    """

    def __init__(self, region: Handle) -> None:
        # Kept, because the core's evidence is about its handle.
        self._region = region
        owner, error = ffi.new("hr_evidence **"), new_error()
        region._check(lib.hr_note(region._handle, owner, error), error)
        self._evidence = ffi.gc(owner[0], lib.hr_free_evidence)
        wanted = ffi.new("struct hr_wanted *")
        lib.hr_get_wanted(self._evidence, wanted)
        self.file = ffi.new("struct hr_asked_file *", wanted.file)
        self.pids = None if wanted.all else frozenset(wanted.pids[0 : wanted.count])

    def add(
        self,
        answers: Iterable[ProcessAnswer],
        *,
        found_all: bool,
        is_all: bool = False,
        cut_short: bool = False,
    ) -> Evidence:
        """Take the answers of processes, at once or in parts; the last part says how complete.

        Args:
            answers: Answers about this evidence's `file`, of processes that were asked after it was
                begun.
            found_all: In a /proc that shows every process of the region, all that `pids` names
                were found and asked. Without it nothing is proved dead.
            is_all: All processes were asked, whatever their pids are.
            cut_short: There was no time for some: a later try may prove more.

        Returns:
            This evidence.
        """
        error = new_error()
        for answer in answers:
            code = lib.hr_add_process(self._evidence, answer._raw, answer._seen, error)
            self._region._check(code, error)
        flags = lib.HR_GATHERED_WANTED * found_all
        flags |= (lib.HR_GATHERED_ALL * is_all) | (lib.HR_GATHERED_CUT_SHORT * cut_short)
        lib.hr_end_evidence(self._evidence, flags)
        return self

    def _raw_for(self, region: Handle) -> Any:
        """Return the core's evidence; ValueError if it is about another handle."""
        if region is not self._region:
            raise ValueError(f"this evidence is about {self._region.path!r}, by another handle")
        region._mapping()
        return self._evidence


def judge(
    region: Handle,
    by_search: Callable[..., int],
    by_evidence: Callable[..., int],
    proc: PathLike,
    evidence: Evidence | None,
) -> Callable[..., int]:
    """Return a call of the core that judges a region's processes, without its further arguments."""
    if evidence is None:
        return partial(by_search, region._handle, proc_root(proc))
    return partial(by_evidence, evidence._raw_for(region))
