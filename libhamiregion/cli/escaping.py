"""Text from outside on its way to a terminal: paths, uuids and the messages that quote them."""


def printable(text: str) -> str:
    r"""Spell out what could steer a terminal: controls, escapes, direction marks, newlines.

    >>> print(printable("GPU-\x1b[2J"))
    GPU-\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
