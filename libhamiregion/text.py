"""Text from outside on its way to a person: paths, names, uuids, command lines, and messages."""

from __future__ import annotations

import os

_CUT = "..."


def printable(text: str, limit: int | None = None) -> str:
    r"""Escape characters that steer a terminal: controls, escapes, direction marks, newlines.

    Args:
        text: Anything, also with the lone surrogates of a file name that is no UTF-8.
        limit: Characters of the result at most; ``...`` at the end of a text that was cut.
            None does not cut.

    Returns:
        One line of printable characters.

    Raises:
        ValueError: A limit too short for the ``...``.

    >>> print(printable("GPU-\x1b[2J"))
    GPU-\x1b[2J
    >>> printable("a" * 4096, limit=8)
    'aaaaa...'
    """
    if limit is None:
        return _spell_out(text)
    # Spelling out only makes longer, so no more than this can be shown.
    spelled = _spell_out(text[: limit + 1])
    return spelled if len(spelled) <= limit else spelled[: limit - len(_CUT)] + _CUT


def error_text(error: BaseException) -> str:
    """An error of the operating system as a sentence with its file.

    >>> error_text(PermissionError(1, "Operation not permitted", "/vgpu/0b5c_train"))
    '/vgpu/0b5c_train: Operation not permitted'
    >>> error_text(OSError(24, "Too many open files", 7))
    'Too many open files'
    """
    if isinstance(error, OSError) and type(error).__str__ is OSError.__str__ and error.strerror:
        # A call with a descriptor has its number in the place of a name.
        is_named = isinstance(error.filename, (str, bytes))
        return f"{os.fsdecode(error.filename)}: {error.strerror}" if is_named else error.strerror
    return str(error) or type(error).__name__


def _spell_out(text: str) -> str:
    if text.isprintable():
        return text
    escaped = (c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
    return "".join(c if c.isprintable() else e for c, e in zip(text, escaped, strict=True))


def count_text(number: int, noun: str) -> str:
    """Write a number of things.

    >>> count_text(1, "process"), count_text(1200, "process"), count_text(0, "device")
    ('1 process', '1,200 processes', '0 devices')
    """
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
