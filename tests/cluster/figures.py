"""Times that the tests measure; they are shown, and not judged."""

from collections.abc import Callable

Figure = Callable[[str, float], None]
LINES: list[str] = []


def note(what: str, seconds: float) -> None:
    """Have a time shown at the end of the run."""
    LINES.append(f"{seconds:8.3f} s  {what}")
