"""The join by columns."""

from fake_nvml.scenes import CARD, GPU, MIB, OTHER, SECOND
from support.containers import needs_namespaces
from support.observing import with_older_sample

from libhamiregion.node import Observer
from libhamiregion.observation.pairing import NO_ROW
from libhamiregion.observation.rows import Join

pytestmark = needs_namespaces


def memory(join: Join) -> dict[tuple[int, str], int | None]:
    """Host pid and uuid to what the driver says of the process there."""
    figures, pairs = join.figures("memory_used_bytes"), join.index
    return {
        (pairs.states.processes[slot].pid, pairs.uuids[device]): None
        if row == NO_ROW
        else figures[row]
        for slot, device, row in zip(pairs.slots, pairs.devices, join.rows_of_pairs, strict=True)
    }


def test_each_process_has_the_drivers_figure_on_each_device(files, fake_driver, nvml_sampler):
    pod = files.container(uuids=[GPU, OTHER])
    _, host_pid = pod.attach()
    with files.open() as opened:
        observer = Observer(opened, sampler=nvml_sampler)
        fake_driver.play(CARD, SECOND, f"process 0 compute {host_pid} {300 * MIB}")
        first = Join(observer.observe())
        # Not listed there: the lists are complete, so it uses nothing.
        assert memory(first) == {(host_pid, GPU): 300 * MIB, (host_pid, OTHER): 0}
        fake_driver.play(CARD, SECOND, f"process 0 compute {host_pid} {400 * MIB}")
        second = Join(observer.observe())
        assert memory(second) == {(host_pid, GPU): 400 * MIB, (host_pid, OTHER): 0}
        fake_driver.play(CARD, SECOND, f"process 1 compute {host_pid} {500 * MIB}")
        third = Join(observer.observe())
        assert memory(third) == {(host_pid, GPU): 0, (host_pid, OTHER): 500 * MIB}
        # It came or went while the driver was asked: it uses something, and nobody knows what.
        fake_driver.add(f"sample 0 {host_pid} 1000 5 0 0 0")
        fourth = Join(observer.observe())
        assert memory(fourth) == {(host_pid, GPU): None, (host_pid, OTHER): 500 * MIB}
        _, other_pid = pod.attach()
        fifth = Join(observer.observe())
        assert {pid for pid, _ in memory(fifth)} == {host_pid, other_pid}


def test_a_process_younger_than_the_sample_has_no_figure(files, fake_driver, nvml_sampler):
    pod = files.container(uuids=[GPU])
    _, host_pid = pod.attach()
    fake_driver.play(CARD, f"process 0 compute {host_pid} {300 * MIB}")
    with files.open() as opened:
        seen = Observer(opened, sampler=nvml_sampler).observe()
        assert memory(Join(with_older_sample(seen))) == {(host_pid, GPU): None}
        # The lists are the same.
        assert memory(Join(seen)) == {(host_pid, GPU): 300 * MIB}


def test_of_a_device_that_a_region_names_twice_the_first_has_the_figure(
    files, fake_driver, nvml_sampler
):
    pod = files.container(uuids=[GPU, GPU])
    _, host_pid = pod.attach()
    fake_driver.play(CARD, f"process 0 compute {host_pid} {300 * MIB}")
    with files.open() as opened:
        sums = Join(Observer(opened, sampler=nvml_sampler).observe()).device_sums(
            "memory_used_bytes"
        )
    assert (list(sums.sums), list(sums.rows)) == ([300 * MIB, 0], [0, NO_ROW])
