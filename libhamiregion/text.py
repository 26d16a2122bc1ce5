"""Text from outside on its way to a person: paths, names, uuids, command lines, and messages."""

from __future__ import annotations

_CUT = "..."


def printable(text: str, limit: int | None = None) -> str:
    r"""Spell out what could steer a terminal: controls, escapes, direction marks, newlines.

    Args:
        text: Anything, also with the lone surrogates of a file name that is no UTF-8.
        limit: Characters of the result at most; what is cut off is shown by a final ``...``.
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
    if limit < len(_CUT):
        raise ValueError(f"a limit is {len(_CUT)} characters or more, not {limit}")
    # Spelling out only makes longer, so no more than this can be shown.
    spelled = _spell_out(text[: limit + 1])
    return spelled if len(spelled) <= limit else spelled[: limit - len(_CUT)] + _CUT


def _spell_out(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
