"""The part of docs/doctor.md that lists every kind of finding, from the catalogue."""

from __future__ import annotations

from pathlib import Path

from libhamiregion.doctor import FindingKind

FILE = Path(__file__).parent / "doctor.md"
BEGIN = "<!-- The rest is made from the catalogue: make texts -->\n"
GROUPS = {
    "Host pids": FindingKind.HOST_PID_WRONG,
    "Slots": FindingKind.DEAD_PROCESS_COUNTED,
    "The lock": FindingKind.LOCK_STUCK,
    "Memory, devices, limits": FindingKind.GPU_FAILED,
    "Files": FindingKind.LAYOUT_MIXED,
}


def explained(kind: FindingKind) -> str:
    """One kind as a section."""
    says = kind.explanation
    transient = ", transient" if says.is_transient else ""
    severity = says.severity.value.capitalize()
    advice = says.advice.replace("hamiregion doctor --repair --root DIR", "--repair")
    return (
        f"### `{kind.value}`\n\n*{severity}{transient}.* {says.what}\n\n"
        f"{_sentence(says.consequence)} **Advice:** {advice}.\n"
    )


def _sentence(text: str) -> str:
    return text if text.startswith("libvgpu") else text[0].upper() + text[1:]


def findings() -> str:
    """The part of the page that comes from the catalogue."""
    first = {kind: title for title, kind in GROUPS.items()}
    parts = []
    for kind in FindingKind:
        if kind in first:
            parts.append(f"## {first[kind]}\n")
        parts.append(explained(kind))
    return "\n".join(parts)


def text() -> str:
    """The whole page, with what stands before the list as it is."""
    head, marker, _ = FILE.read_text(encoding="utf-8").partition(BEGIN)
    if not marker:
        raise SystemExit(f"{FILE.name} has lost the line {BEGIN!r}")
    return f"{head}{BEGIN}\n{findings()}"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
