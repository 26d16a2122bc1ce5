"""What clients accept, and what they get."""

import pytest
from prometheus_client.exposition import choose_encoder

from libhamiregion.exporter.negotiation import accepts_gzip, wants_openmetrics

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;"
    "q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    "accept",
    [
        PROMETHEUS_2,
        PROMETHEUS_3,
        PROMETHEUS_PROTOBUF,
        BROWSER,
        "",
        "*/*",
        "text/plain",
        "text/plain;version=0.0.4",
        "application/openmetrics-text; version=1.0.0",
        "application/openmetrics-text; version=0.0.1",
        "application/json",
    ],
)
def test_scrapers_get_the_format_that_prometheus_client_gives_them(accept: str) -> None:
    _, content_type = choose_encoder(accept)
    theirs = content_type.startswith("application/openmetrics-text")
    assert wants_openmetrics(accept) is theirs


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text ; Version=1.0.0", True),
        ('application/openmetrics-text;version="1.0.0"', True),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.7", False),
        ("application/openmetrics-text;q=0.7,text/plain;q=0.7", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=nan", False),
        ("application/openmetrics-text;q=7", False),
        ("application/openmetrics-text;q=x", False),
        ("application/openmetrics-text;version=2.0.0", False),
        (",;=,;;q=,," * 10_000, False),
    ],
)
def test_the_preferred_format_wins(accept: str, openmetrics: bool) -> None:
    assert wants_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("deflate, gzip;q=0.5, br", True),
        ("*", True),
        ("", False),
        ("identity", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("gzip, *;q=0", True),
    ],
)
def test_only_who_accepts_gzip_gets_it(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted
