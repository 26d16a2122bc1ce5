"""Evidence of which processes use a region, gathered apart from the calls that judge by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from ._core import ffi, lib
from .errors import new_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ._handle import Handle

#: A process and a file: it maps it for writing or not; it may do so; its maps were not read in
#: time, are too long, or were refused; or it has ended.
Mapped: TypeAlias = Literal["yes", "no", "maybe", "late", "too_long", "refused", "gone"]
_MAPPED: Final[dict[int, Mapped]] = {
    lib.HR_MAPS: "yes",
    lib.HR_MAPS_NOT: "no",
    lib.HR_MAPS_NOTHING: "no",
    lib.HR_MAPS_UNSURE: "maybe",
    lib.HR_NO_TIME: "late",
    lib.HR_TOO_LONG: "too_long",
    lib.HR_REFUSED: "refused",
    lib.HR_GONE: "gone",
}
_SEEN: Final[dict[Mapped, int]] = {text: seen for seen, text in _MAPPED.items()}


@attrs.frozen
class WantedFile:
    """A region's file as the maps of processes show it: numbers that a worker may take.

    Attributes:
        major, minor, inode: Its device and inode.
        nbytes: The bytes of it that a process of the region maps.
        has_own_pages: Its file system keeps the pages of its files itself.
    """

    major: int
    minor: int
    inode: int
    nbytes: int
    has_own_pages: bool


@attrs.frozen
class ProcessAnswer:
    """What a process has answered: see `ask_process`.

    Attributes:
        pids: Its pids, from the namespace of that /proc to its own; empty if not known.
        start_time_ticks: With its pid in that /proc its identity, in clock ticks after boot; None
            if it has ended (a zombie has) or this may not be read.
        has_libvgpu: It has libvgpu mapped.
        mapped: For each file that was asked for.
        cut: Its maps were not read to their end.
        is_self: The process that has asked.
    """

    pids: tuple[int, ...]
    start_time_ticks: int | None
    has_libvgpu: bool
    mapped: tuple[Mapped, ...]
    cut: bool
    is_self: bool


def ask_process(
    proc: int, pid: int, files: Sequence[WantedFile], *, timeout_s: float = 1.0
) -> ProcessAnswer:
    """Ask one process whether it maps files, and for its pids and its age.

    Takes numbers and no region, so that the thread which calls it can be given up: a process can
    keep a reader of its maps waiting for ever, whatever `timeout_s` says.

    Args:
        proc: A descriptor of /proc.
        pid: The process, there.
        files: `Evidence.file` of any number of regions.
        timeout_s: How long its maps may take to be read.
    """
    asked = ffi.new("struct hr_asked_file[]", len(files))
    for one, file in zip(asked, files, strict=True):
        one.file = (file.major, file.minor, file.inode)
        one.bytes, one.has_own_pages = file.nbytes, file.has_own_pages
    found = ffi.new("struct hr_answer *")
    lib.hr_ask_process(proc, pid, asked, len(files), int(timeout_s * 1e9), found)
    return ProcessAnswer(
        pids=tuple(found.pids[0 : found.levels]),
        start_time_ticks=found.start_time_ticks if found.start_time_ticks >= 0 else None,
        has_libvgpu=bool(found.has_libvgpu),
        mapped=tuple(_MAPPED[one.seen] for one in asked),
        cut=bool(found.is_cut),
        is_self=bool(found.is_self),
    )


class Evidence:
    """Evidence about one region, for the calls that judge its processes. Made by `Region.evidence`.

    It begins with the lock and the slots as they are. Calls that take it judge nothing that has
    changed since, read /proc no more, and learn nothing from evidence older than 5 s.

    Not to be shared by threads at the same time.

    Attributes:
        file: The file to ask processes for.
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
        file = wanted.file
        self.file = WantedFile(
            major=file.file.major_number,
            minor=file.file.minor_number,
            inode=file.file.inode,
            nbytes=file.bytes,
            has_own_pages=bool(file.has_own_pages),
        )
        self.pids = None if wanted.all else frozenset(wanted.pids[0 : wanted.count])

    def add(
        self,
        answers: Iterable[tuple[ProcessAnswer, Mapped]],
        *,
        found_all: bool,
        is_all: bool = False,
        cut_short: bool = False,
    ) -> Evidence:
        """Take the answers of processes, at once or in parts; the last part says how complete.

        Args:
            answers: Answers of processes that were asked after this evidence was begun, each with
                what it says of this region's file.
            found_all: In a /proc that shows every process of the region, all that `pids` names
                were found and asked. Without it nothing is proved dead.
            is_all: All processes were asked, whatever their pids are.
            cut_short: There was no time for some: a later try may prove more.

        Returns:
            This evidence.
        """
        raw, error = ffi.new("struct hr_answer *"), new_error()
        for answer, mapped in answers:
            raw.start_time_ticks = answer.start_time_ticks or lib.HR_HAS_ENDED
            raw.levels = len(answer.pids)
            raw.pids[0 : len(answer.pids)] = answer.pids
            raw.has_libvgpu, raw.is_cut = answer.has_libvgpu, answer.cut
            raw.is_too_long, raw.is_self = "too_long" in answer.mapped, answer.is_self
            code = lib.hr_add_process(self._evidence, raw, _SEEN[mapped], error)
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
