"""Temperature, power and memory errors: asked only on request, and never a 0 that is not one."""

from fake_nvml.driver import FakeDriver
from fake_nvml.scenes import CARD, SECOND, states

from libhamiregion.node import NvmlSampler, NvmlState


def test_the_sensors_are_read_where_they_are_wanted(fake_driver: FakeDriver) -> None:
    fake_driver.play(CARD, "sensors 0 41 187500 3 1")
    with NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as sampler:
        (device,) = sampler.sample().devices
    assert device.temperature_celsius == 41
    assert device.power_usage_watts == 187.5
    assert (device.ecc_corrected_errors, device.ecc_uncorrected_errors) == (3, 1)
    assert device.faults == ()


def test_energy_and_xid_events_are_counted_from_the_first_sample_on(
    fake_driver: FakeDriver,
) -> None:
    sensors = (CARD, SECOND, "sensors 0 41 187500 3 1", "energy 0 7200000500", "sensors 1 1 1 0 0")
    old = ("xid 0 79",)
    fake_driver.play(*sensors, *old)
    with NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as sampler:
        first, second = sampler.sample().devices
        assert (first.energy_joules, second.energy_joules) == (7_200_000.5, 0)
        assert (first.xid_errors, second.xid_errors) == ((), ()), "what was before is not told"
        new = ("xid 0 31", "xid 0 31", "xid 1 48", "xid 0 13")
        fake_driver.play(*sensors, *old, *new)
        first, second = sampler.sample().devices
        assert (first.xid_errors, second.xid_errors) == (((13, 1), (31, 2)), ((48, 1),))
        first, second = sampler.sample().devices
        assert first.xid_errors == ((13, 1), (31, 2)), "each event counts once"
        fake_driver.play(*sensors, *old, *new, *("xid 1 48" for _ in range(300)))
        counts = [sampler.sample().devices[1].xid_errors for _ in range(2)]
        assert counts == [((48, 257),), ((48, 301),)], "a storm is taken in parts"
    assert (first.faults, second.faults) == ((), ())


def test_events_of_a_gpu_that_is_lost_keep_nobody_elses_waiting(fake_driver: FakeDriver) -> None:
    sensors = (CARD, SECOND, "sensors 0 41 187500 3 1", "sensors 1 1 1 0 0")
    fake_driver.play(*sensors)
    with NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as sampler:
        sampler.sample()
        lost = ("xid 0 79", "xid 1 79")
        fake_driver.play(*sensors, *lost, "error nvmlDeviceGetIndex 15")
        sampler.sample()
        fake_driver.play(*sensors, *lost, "xid 1 31")
        counts = [device.xid_errors for device in sampler.sample().devices]
        assert counts == [(), ((31, 1),)], "what was lost has been taken, and is nobody's"


def test_a_gpu_that_gives_no_events_says_so_at_each_sample(fake_driver: FakeDriver) -> None:
    fake_driver.play(CARD, "sensors 0 41 1 3 1", "error nvmlDeviceRegisterEvents 3")
    with NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as sampler:
        for _ in range(2):
            (device,) = sampler.sample().devices
            assert device.xid_errors is None
            assert states(device.faults) == {("nvmlDeviceRegisterEvents", NvmlState.NOT_SUPPORTED)}


def test_who_does_not_want_them_does_not_ask(fake_driver: FakeDriver) -> None:
    asked = (
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlEventSetCreate",
    )
    fake_driver.play(CARD, "sensors 0 41 187500 3 1", *(f"error {call} 999" for call in asked))
    with NvmlSampler(fake_driver.library, host_namespace=True) as sampler:
        (device,) = sampler.sample().devices
    assert device.temperature_celsius is None
    assert device.power_usage_watts is None
    assert device.faults == ()


def test_who_wants_no_processes_does_not_ask_for_them(fake_driver: FakeDriver) -> None:
    asked = (
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
        "nvmlDeviceGetProcessUtilization",
    )
    fake_driver.play(CARD, "process 0 compute 77 1000", *(f"error {call} 999" for call in asked))
    with NvmlSampler(fake_driver.library, host_namespace=True, processes=False) as sampler:
        sample = sampler.sample()
    (device,) = sample.devices
    assert device.faults == ()
    assert device.processes_state is device.utilization_state is NvmlState.NOT_ASKED
    assert sample.processes == ()
    assert sample.process(device.uuid, 77) is None, "it is not known, which is not unused"


def test_a_card_without_sensors_has_a_reason_for_each(fake_driver: FakeDriver) -> None:
    fake_driver.play(CARD, SECOND, "sensors 1 70 4000000000 0 0")
    with NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as sampler:
        first, second = sampler.sample().devices
    assert states(first.faults) == {
        ("nvmlDeviceGetTemperature", NvmlState.NOT_SUPPORTED),
        ("nvmlDeviceGetPowerUsage", NvmlState.NOT_SUPPORTED),
        ("nvmlDeviceGetTotalEccErrors", NvmlState.NOT_SUPPORTED),
        ("nvmlDeviceGetTotalEnergyConsumption", NvmlState.NOT_SUPPORTED),
        ("nvmlDeviceRegisterEvents", NvmlState.NOT_SUPPORTED),
    }
    assert second.temperature_celsius == 70
    assert second.ecc_uncorrected_errors == 0
    assert second.power_usage_watts is None
    assert states(second.faults) == {("nvmlDeviceGetPowerUsage", NvmlState.OUT_OF_RANGE)}
