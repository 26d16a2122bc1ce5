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


def test_who_does_not_want_them_does_not_ask(fake_driver: FakeDriver) -> None:
    asked = (
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEccErrors",
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
    }
    assert second.temperature_celsius == 70
    assert second.ecc_uncorrected_errors == 0
    assert second.power_usage_watts is None
    assert states(second.faults) == {("nvmlDeviceGetPowerUsage", NvmlState.OUT_OF_RANGE)}
