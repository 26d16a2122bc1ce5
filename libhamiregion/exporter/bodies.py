"""The bodies of scrapes: kept in parts that scrapes share, compressed without doing it twice."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import attrs

# The same format in less than half of the time, and somewhat smaller. It has no wheels for some
# platforms, and nothing depends on it.
try:
    from isal import isal_zlib as zlib
except ImportError:
    import zlib  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

# On text like this level 1 takes a third of the time of level 6, for some 15 % more bytes.
_LEVEL: Final = 1
# zlib's windowBits for deflate without header and trailer, which are ours.
_RAW: Final = -15
# No name, no time, so that equal texts give equal bytes; "unknown" system.
_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
# An empty last block.
_END: Final = b"\x03\x00"
# What is compressed at a time, and found again if it has not changed: smaller ones are found again
# more often, larger ones compress better.
_BLOCK_BYTES: Final = 16 * 1024
# Whose blocks are kept: two formats, and some who ask for a part.
_KINDS: Final = 4
# The heads of metrics; each is compressed together with what follows.
_SMALL_BYTES: Final = 1024


@attrs.frozen(eq=False)
class Body:
    """The text of an answer, in parts that other answers may share.

    Attributes:
        parts: What it consists of.
        size: Bytes of all parts.
    """

    parts: tuple[bytes, ...]
    size: int

    @classmethod
    def of(cls, text: bytes | Iterable[bytes]) -> Body:
        """A text, as a whole or in parts."""
        parts = (text,) if isinstance(text, bytes) else tuple(text)
        return cls(parts, sum(map(len, parts)))

    def chunks(self, most: int) -> Iterator[bytes]:
        """The text in pieces of at most so many bytes, not many more of them than necessary."""
        gathered: list[bytes] = []
        size = 0
        for part in self.parts:
            if size + len(part) > most and gathered:
                yield b"".join(gathered)
                gathered, size = [], 0
            if len(part) > most:
                for start in range(0, len(part), most):
                    yield part[start : start + most]
                continue
            gathered.append(part)
            size += len(part)
        if gathered:
            yield b"".join(gathered)


class Gzip:
    """Compresses one scrape after the other, and each part that has not changed only once.

    Most of a scrape is what the one before it was: names, limits, who is there. A gzip file may be
    put together from blocks that refer to nothing before them, so the blocks of unchanged text are
    taken from the last time. They are told by their 64-bit hash, keyed anew for each process, and
    their length.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        #: What was asked for to the blocks of its last answer.
        self._last: OrderedDict[Hashable, dict[tuple[int, int], bytes]] = OrderedDict()

    def compress(self, body: Body, kind: Hashable = None) -> Body:
        """The same text as a gzip file.

        Args:
            body: The text.
            kind: What was asked for: only answers to the same have blocks in common.
        """
        deflate, before = self._deflate, self._last.pop(kind, {})
        now: dict[tuple[int, int], bytes] = {}
        compressed = [_HEADER]
        crc = 0
        for block in _blocks(body.parts):
            crc = zlib.crc32(block, crc)
            key = (hash(block), len(block))
            piece = before.get(key)
            if piece is None:
                # Ends at a whole byte, and what follows does not refer to it.
                piece = deflate.compress(block) + deflate.flush(zlib.Z_FULL_FLUSH)
            now[key] = piece
            compressed.append(piece)
        self._last[kind] = now
        if len(self._last) > _KINDS:
            self._last.popitem(last=False)
        compressed += [_END, struct.pack("<II", crc, body.size & 0xFFFF_FFFF)]
        return Body.of(b"".join(compressed))


def _blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts cut where they are cut each time, whatever stands before them."""
    small: list[bytes] = []
    for part in parts:
        if len(part) < _SMALL_BYTES:
            small.append(part)
            continue
        for start in range(0, len(part), _BLOCK_BYTES):
            small.append(part[start : start + _BLOCK_BYTES])
            yield b"".join(small)
            small = []
    if small:
        yield b"".join(small)
