"""What a reader remembers: utilisation that stays in a region, containers without a limit."""

import attrs
from fake_nvml.scenes import CARD, GPU, OTHER, SECOND
from support.exposition import parsed
from support.seen_node import SHARE, entry, seen

from libhamiregion.doctor import FindingKind, diagnose
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import Node, Observation, Observer, history
from libhamiregion.observation.json import from_json, to_json
from libhamiregion.observation.rows import Join
from libhamiregion.observation.without_region import explained
from libhamiregion.units import GIB


def percents(seen: Observation) -> list[int | None]:
    assert Join(from_json(to_json(seen))).device_percents == Join(seen).device_percents
    return Join(seen).device_percents


def test_a_figure_of_a_second_device_that_stays_while_the_driver_says_0_is_unknown(
    files, fake_driver, nvml_sampler, monkeypatch
):
    monkeypatch.setattr(history, "_UNCHANGED_S", 0.0)
    pod = files.container(uuids=[GPU, OTHER])
    _, host_pid = pod.attach()
    for device in (0, 1):
        pod.put("slot_util.sm", 40 + device, device=device)
    idle = [CARD, SECOND, *(f"process {gpu} compute {host_pid} {GIB}" for gpu in (0, 1))]
    fake_driver.play(*idle)
    with files.open() as node:
        observer = Observer(node, sampler=nvml_sampler)
        for expected in ([40, 41], [40, 41], [40, None]):
            assert percents(observer.observe()) == expected
            # Those of other tasks, without the driver, do not begin it again.
            observer.observe(driver=False)
        # It moves: libvgpu writes it.
        pod.put("slot_util.sm", 42, device=1)
        assert percents(observer.observe()) == [40, 42]
        # The process is busy, or the driver is not asked.
        fake_driver.play(*idle, f"sample 1 {host_pid} 100 41 0 0 0")
        assert [percents(observer.observe()) for _ in range(4)] == [[40, 42]] * 4
        assert [percents(Observer(node).observe()) for _ in range(4)] == [[40, 42]] * 4


def test_it_takes_more_than_the_driver_s_second(files, fake_driver, nvml_sampler):
    pod = files.container(uuids=[GPU, OTHER])
    _, host_pid = pod.attach()
    pod.put("slot_util.sm", 41, device=1)
    fake_driver.play(CARD, SECOND, f"process 1 compute {host_pid} {GIB}")
    with files.open() as node:
        observer = Observer(node, sampler=nvml_sampler)
        assert {tuple(percents(observer.observe())) for _ in range(5)} == {(0, 41)}


def test_a_zero_of_a_process_that_the_driver_sees_at_work_is_unknown(
    files, fake_driver, nvml_sampler
):
    pod = files.container(pod="job-0", uuids=[GPU])
    _, host_pid = pod.attach()
    used = f"process 0 compute {host_pid} {GIB}"
    series = "hamiregion_process_sm_utilization_ratio"

    def page(node: Node) -> dict[frozenset[tuple[str, str]], float]:
        exporter = NodeExporter(node, sampler=nvml_sampler, max_age_s=0.0)
        found = parsed(exporter.render())
        assert found.value("hami_container_device_utilization_ratio") == 0
        return found.series(series)

    with files.open() as node:
        observer = Observer(node, sampler=nvml_sampler)
        fake_driver.play(CARD, used)
        assert percents(observer.observe()) == [0]
        assert list(page(node).values()) == [0]
        fake_driver.play(CARD, used, f"sample 0 {host_pid} 100 7 0 0 0")
        assert percents(observer.observe()) == [None]
        assert page(node) == {}
        assert percents(Observer(node).observe()) == [0]


# ---- containers that no libvgpu limits ----


def not_limited(history: history.History, taken_s: float, *, is_asked: bool = True) -> list[str]:
    """The kinds and severities that a document of a reader at that time has."""
    at = seen(entry(1, share=SHARE))
    assert at.sample is not None
    at = attrs.evolve(at, sample=attrs.evolve(at.sample, taken_s=taken_s) if is_asked else None)
    at = attrs.evolve(at, snapshot=explained(at))
    at = attrs.evolve(at, not_limited_s=history.not_limited_s(at))
    found, redacted = (diagnose(from_json(to_json(at, redact=each))) for each in (False, True))
    assert [each.kind for each in redacted] == [each.kind for each in found]
    assert {each.kind for each in found} <= {FindingKind.SHARE_NOT_LIMITED}
    return [each.severity.value for each in found if not each.is_transient]


def test_a_share_without_a_limit_is_an_error_once_it_was_so_twice_30_s_apart():
    remembered = history.History()
    assert not_limited(remembered, 100.0) == []
    assert not_limited(remembered, 129.0) == []
    assert not_limited(remembered, 129.5, is_asked=False) == []
    assert not_limited(remembered, 130.0) == ["error"]
    # Another reader has its own history, as this one after the container had a region.
    assert not_limited(history.History(), 130.0) == []
    assert remembered.not_limited_s(seen(entry(1))) == {}
    assert not_limited(remembered, 160.0) == []


def test_a_reader_without_a_history_says_so_at_once_of_what_may_pass(files):
    with files.open() as node:
        assert Observer.for_command(node).observe().not_limited_s is None
        assert Observer(node).observe().not_limited_s == {}
    at = seen(entry(1, share=SHARE))
    (found,) = diagnose(attrs.evolve(at, snapshot=explained(at)))
    assert (found.kind, found.is_transient) == (FindingKind.SHARE_NOT_LIMITED, True)
