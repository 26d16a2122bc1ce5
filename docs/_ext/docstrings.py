"""What docstrings say shortly, said so that it can be rendered.

- ``A, B: why`` in a *Raises* section is one entry for each of them.
- An example, indented below a sentence, is code and no quotation.
- ``Name()`` as a directive's argument means that users do not make instances: no signature then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_SECTION = re.compile(r"\w[\w ]*:")
_UNFINISHED = re.compile(r" +[\w.]+(?:, [\w.]+)*(?:,|: As)")
_SEVERAL = re.compile(r"(?P<indent> +)(?P<names>[\w.]+(?:, [\w.]+)+): (?P<why>.*)")


def split_raises(lines: list[str]) -> list[str]:
    out: list[str] = []
    inside = False
    for line in lines:
        if _SECTION.fullmatch(line):
            inside = line == "Raises:"
        if inside and out and _UNFINISHED.fullmatch(out[-1]):
            out[-1] += f" {line.strip()}"
        else:
            out.append(line)
        if inside and (match := _SEVERAL.fullmatch(out[-1])):
            names = match["names"].split(", ")
            out[-1:] = [f"{match['indent']}{name}: {match['why']}" for name in names]
    return out


def mark_examples(lines: list[str]) -> list[str]:
    out: list[str] = []
    inside = False
    for line in lines:
        if line and not line.startswith(" "):
            # Sections, and their entries, are indented as well.
            inside = _SECTION.fullmatch(line) is not None
        elif line.startswith("    ") and not inside and out and not out[-1]:
            out += ["::", ""]
            inside = True
        out.append(line)
    return out


def process(*arguments: Any) -> None:
    lines: list[str] = arguments[-1]
    lines[:] = split_raises(mark_examples(lines))


def shorten_signature(_app: Sphinx, what: str, *rest: Any) -> tuple[str | None, str | None] | None:
    signature, returned = rest[-2:]
    if what in {"class", "exception"} and signature == "()":
        return "", None
    # What autodoc_type_aliases names, where it is one type of several.
    plain = signature and re.sub(r"TypeAliasForwardRef\('([^']*)'\)", r"\1", signature)
    return None if plain == signature else (plain, returned)


def setup(app: Sphinx) -> dict[str, Any]:
    # Before napoleon, which registers with the default priority of 500.
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
