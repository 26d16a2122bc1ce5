"""Write the table of public names into docs/api.md: `make texts`."""

import inspect
import re
from pathlib import Path

import libhamiregion

PAGE = Path(__file__).with_name("api.md")
START, END = "<!-- names: made by make texts -->\n", "<!-- end of names -->\n"


def line_of(name: str, value: object) -> str:
    """The first sentence about a name: of its docstring, or of the comment above a type."""
    if inspect.isclass(value) or inspect.isroutine(value):
        text = (value.__doc__ or "").partition("\n")[0]
    else:
        sources = "".join(path.read_text() for path in Path(libhamiregion.__path__[0]).glob("*.py"))
        found = re.search(rf"((?:^#: .*\n)+){name}(?::| =)", sources, re.MULTILINE)
        text = "" if found is None else found[1].replace("#: ", "").replace("\n", " ")
    return re.split(r"(?<=[.;])\s", text.strip())[0].rstrip(";.").replace("|", r"\|")


def table() -> str:
    """The table, in the order of the names."""
    names = {
        name: value
        for name, value in vars(libhamiregion).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    rows = [
        f"| `{name}` | {line_of(name, names[name])} |\n" for name in sorted(names, key=str.lower)
    ]
    return "".join([START, "\n| name | meaning |\n|---|---|\n", *rows, "\n", END])


def page() -> str:
    """The page with the table of now."""
    before, rest = PAGE.read_text().split(START)
    return before + table() + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
