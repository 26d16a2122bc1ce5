"""What a run has cost, and what it left out, with what would make that run."""

import collections
import resource

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


def cpu_s() -> float:
    """What this process and all that it has waited for have used, and theirs."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{cpu_s():.0f} s of CPU")
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
