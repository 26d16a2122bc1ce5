"""Take the picture of a report in docs/record-and-report.md: docs/images/report.png.

    PYTHONPATH=tests python tools/capture_report.py

The report is that of the tests' synthetic day, in the Chromium that the tests use.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path

from support.browser import chromium
from support.recorded_day import DAY_S, MIDNIGHT_S, record, tenants

from libhamiregion.report import Recording, make_report, report_html

PICTURE = Path(__file__).parents[1] / "docs/images" / "report.png"
WIDTH, HEIGHT = 1180, 1180


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hamiregion-") as name:
        path, page = Path(name) / "node.db", Path(name) / "report.html"
        record(path, tenants())
        span = (MIDNIGHT_S * 1000, (MIDNIGHT_S + DAY_S) * 1000)
        with Recording(path) as recording:
            report = make_report([recording], *span, by="namespace", points=240)
        text = report_html(report, zone=dt.timezone.utc)
        # Where it was recorded on this machine is of no interest.
        page.write_text(text.replace(str(path), "/var/lib/hamiregion/node.db"), encoding="utf-8")
        with chromium() as browser, browser.open(page.as_uri()) as opened:
            opened.appear(width=WIDTH, height=HEIGHT)
            PICTURE.write_bytes(opened.screenshot(whole=False))


if __name__ == "__main__":
    main()
