"""What a run left out, one line for each reason, with what would make it run."""

import collections

import pytest

# A word of the reason, and what to do about it.
CURES = {
    "GPU": "a machine with an NVIDIA GPU",
    "root": "run it as root",
    "rights": "run it as root",
    "mount": "run it as root",
    "first pid namespace": "run it as root, outside of containers",
    "/proc does not show": "run it as root, outside of containers",
    "cgroup": "run it as root, on a system with cgroups of version 2",
    "Prometheus": "install prometheus",
    "promtool": "install prometheus",
    "Chromium": "install chromium",
    "openssl": "install openssl",
    "C compiler": "install gcc and libc6-dev",
}


def cure(reason: str) -> str:
    found = [cure for word, cure in CURES.items() if word in reason]
    return f" ({found[0]})" if found else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    if not reports:
        return
    # A report's longrepr is path, line, and "Skipped: " with the reason.
    reasons = collections.Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports
    )
    terminalreporter.section("left out")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason}{cure(reason)}")
