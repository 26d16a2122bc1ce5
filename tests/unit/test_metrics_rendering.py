"""Text from series: the two formats, and what is kept from one scrape to the next."""

from exposition import parsed

from libhamiregion.exporter import Series, metrics
from libhamiregion.exporter.labels import LabelMaker
from libhamiregion.exporter.rendering import Sheet, ratio_text, steady

device = LabelMaker(metrics.MEMORY_USED)
own = LabelMaker(metrics.SM_LIMIT)
parts = LabelMaker(metrics.LEGACY_MEMORY_PARTS, figures=4)
nothing = LabelMaker(metrics.SCRAPES)


def named(pod: str) -> tuple[str, ...]:
    return ("ns", pod, "main", "0", "GPU-%s-%d")


def text(*series: Series, openmetrics: bool = False, sheet: Sheet | None = None) -> bytes:
    return b"".join((sheet or Sheet()).render(series, openmetrics=openmetrics))


def test_a_family_has_its_help_its_type_and_a_line_per_series() -> None:
    labels = [device(*named("a")), device(*named("b"))]
    lines = text(Series(metrics.MEMORY_USED, labels, [2**64 - 1, 0])).decode().splitlines()
    rest = 'container="main",vdevice_index="0",device_uuid="GPU-%s-%d",zone="vGPU"}'
    assert lines == [
        f"# HELP hami_vgpu_memory_used_bytes {metrics.MEMORY_USED.help}",
        "# TYPE hami_vgpu_memory_used_bytes gauge",
        f'hami_vgpu_memory_used_bytes{{namespace="ns",pod="a",{rest} 18446744073709551615',
        f'hami_vgpu_memory_used_bytes{{namespace="ns",pod="b",{rest} 0',
    ]


def test_a_family_without_series_is_not_there() -> None:
    assert text(Series(metrics.MEMORY_USED, [], [])) == b""


def test_openmetrics_calls_a_counter_by_its_base_name_and_ends_with_eof() -> None:
    series = steady(metrics.SCRAPES, [(nothing(), 7)])
    assert text(series).decode().splitlines()[1:] == [
        "# TYPE hamiregion_scrapes_total counter",
        "hamiregion_scrapes_total 7",
    ]
    assert text(series, openmetrics=True).decode().splitlines()[1:] == [
        "# TYPE hamiregion_scrapes counter",
        "hamiregion_scrapes_total 7",
        "# EOF",
    ]


def test_percents_become_ratios_without_a_rounding_error() -> None:
    for percent in (*range(301), 2**40 + 1):
        assert float(ratio_text(percent)) == percent / 100
    labels = [own(*named(str(percent))) for percent in (0, 7, 100, 250)]
    series = Series(metrics.SM_LIMIT, labels, [0, 7, 100, 250])
    found = parsed(text(series)).series("hamiregion_device_sm_limit_ratio")
    assert sorted(found.values()) == [0, 0.07, 1, 2.5]


def test_figures_can_be_the_values_of_labels() -> None:
    labels = [parts(*named("a")), parts(*named("b"))]
    columns = ((1, 5), (2, 6), (3, 7), (0, 2**64 - 1))
    series = Series(metrics.LEGACY_MEMORY_PARTS, labels, (6, 17), label_figures=columns)
    found = parsed(text(series))
    at = {"context": "5", "module": "6", "data": "7", "offset": str(2**64 - 1)}
    last = list(series.samples())[-1]
    assert last[1] == 17
    assert {**at, "podname": "b", "zone": "vGPU"}.items() <= last[0].items()
    assert found.value("Device_memory_desc_of_container", podname="b", **at) == 17


def test_lines_are_kept_while_the_labels_stay_and_made_anew_when_they_change() -> None:
    sheet = Sheet()
    first = [device(*named("a"))]
    assert b'pod="a"' in text(Series(metrics.MEMORY_USED, first, [1]), sheet=sheet)
    assert text(Series(metrics.MEMORY_USED, first, [2]), sheet=sheet).endswith(b" 2\n")
    second = [device(*named("b"))]
    changed = text(Series(metrics.MEMORY_USED, second, [2]), sheet=sheet)
    assert b'pod="b"' in changed
    assert b'pod="a"' not in changed


def test_a_steady_family_is_written_once_and_again_when_its_values_are_others() -> None:
    sheet = Sheet()
    rows = [(device(*named("a")), 1)]
    series = steady(metrics.MEMORY_USED, rows)
    (_, first), (_, again) = (sheet.render([series]) for _ in range(2))
    assert first is again
    (_, new) = sheet.render([steady(metrics.MEMORY_USED, [(rows[0][0], 2)])])
    assert new.endswith(b" 2\n")
    volatile = Series(metrics.MEMORY_USED, series.labels, (3,))
    assert sheet.render([volatile])[1].endswith(b" 3\n")
    assert sheet.render([series])[1].endswith(b" 1\n")
