"""Opening, closing and finding NVML."""

import ctypes
import os
import sys
import threading

import pynvml
import pytest
from fake_nvml.scenes import CARD, GPU, MIB, SECOND, initialisations
from support.process import finished

from libhamiregion.node.nvml import NvmlSampler, NvmlState


def test_initialisations_are_given_back_however_it_is_opened(fake_driver):
    fake_driver.play(CARD)
    sampler = NvmlSampler(fake_driver.library)
    assert sampler.state is NvmlState.CLOSED
    assert len(sampler.sample().devices) == 1, "the first question opens it"
    assert initialisations() == 1
    with sampler, NvmlSampler(fake_driver.library) as other:
        assert initialisations() == 2
        other.sample()
    assert (sampler.state, initialisations()) == (NvmlState.CLOSED, 0)
    sampler.close()
    assert initialisations() == 0


def test_somebody_elses_shutdown_is_survived(fake_driver):
    fake_driver.play(CARD)
    with NvmlSampler(fake_driver.library) as sampler:
        pynvml.nvmlShutdown()
        assert sampler.sample().state is NvmlState.UNINITIALIZED
        assert sampler.sample().state is NvmlState.OK
        assert initialisations() == 1
    assert initialisations() == 0


def test_samples_load_no_library_again(fake_driver, monkeypatch):
    fake_driver.play(CARD, SECOND, f"process 0 compute 101 {MIB}")
    with NvmlSampler(fake_driver.library) as sampler:
        sampler.sample()

        def load(*_: object, **__: object) -> None:
            pytest.fail("a library is loaded again")

        monkeypatch.setattr(ctypes, "CDLL", load)
        assert len(sampler.sample().processes) == 1


def test_threads_share_a_sampler(fake_driver):
    fake_driver.play(CARD, f"process 0 compute 101 {MIB}")
    sampler = NvmlSampler(fake_driver.library)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(20):
                sample = sampler.sample()
                assert (sample.state, len(sample.processes)) == (NvmlState.OK, 1)
                sampler.close()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert initialisations() == 0


def run_python(code: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    done = finished(command, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nvidia_ml_py_finds_the_library_by_itself(fake_driver):
    fake_driver.play(CARD)
    code = (
        "from libhamiregion.node.nvml import NvmlSampler\n"
        "with NvmlSampler() as sampler: print(sampler.sample().devices[0].uuid)"
    )
    assert run_python(code, fake_driver.environment()) == GPU


def test_nvidia_ml_py_is_imported_by_the_first_question_only(fake_driver):
    fake_driver.play(CARD)
    code = (
        "import sys\n"
        "from libhamiregion.node.nvml import NvmlSampler\n"
        "sampler = NvmlSampler()\n"
        "before = 'pynvml' in sys.modules\n"
        "sampler.sample()\n"
        "print(before, 'pynvml' in sys.modules)"
    )
    assert run_python(code, fake_driver.environment()) == "False True"


def test_the_library_is_looked_up_once_however_many_samples_are_taken(
    fake_driver, nvml_sampler, monkeypatch
):
    """Each `ctypes.CDLL` makes classes anew: half a millisecond, for each list of each GPU."""
    fake_driver.play(CARD)
    assert nvml_sampler.sample().devices
    made: list[object] = []
    original = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda *args: made.append(args) or original(*args))
    for _ in range(3):
        assert nvml_sampler.sample().devices
    assert made == []


def test_without_the_library_or_the_package_there_is_a_state(fake_driver):
    ask = (
        "from libhamiregion.node.nvml import NvmlSampler\n"
        "sampler = NvmlSampler(LIBRARY)\n"
        "sample = sampler.sample()\n"
        "print(sampler.state.value, sample.message)"
    )
    missing = "LIBRARY = '/nonexistent/libnvidia-ml.so.1'\n" + ask
    told = run_python(missing, dict(os.environ))
    assert told.startswith("library_not_found dlopen: /nonexistent/libnvidia-ml.so.1: ")
    no_package = "import sys; sys.modules['pynvml'] = None; LIBRARY = None\n" + ask
    told = run_python(no_package, fake_driver.environment())
    assert told.startswith("package_missing")
    assert "pip install nvidia-ml-py" in told


@pytest.mark.slow
def test_without_any_library_nvidia_ml_pys_own_search_fails_the_same_way():
    code = (
        "import ctypes\n"
        "def refuse(*args, **options): raise OSError('no such library')\n"
        "import pynvml; pynvml.CDLL = refuse\n"
        "from libhamiregion.node.nvml import NvmlSampler\n"
        "print(NvmlSampler().open().value)"
    )
    assert run_python(code, dict(os.environ)) == "library_not_found"


# ---- sensors ------------------------------------------------------------------------------------


def test_the_sensors_are_read_where_they_are_wanted(fake_driver):
    fake_driver.play(CARD, "sensors 0 41 187500 3 1")
    with NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as sampler:
        (device,) = sampler.sample().devices
    assert device.temperature_celsius == 41
    assert device.power_usage_watts == 187.5
    assert (device.ecc_corrected_errors, device.ecc_uncorrected_errors) == (3, 1)


def test_who_does_not_want_them_does_not_ask(fake_driver):
    asked = (
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTotalEccErrors",
    )
    fake_driver.play(CARD, "sensors 0 41 187500 3 1", *(f"error {call} 15" for call in asked))
    with NvmlSampler(fake_driver.library, host_namespace=True) as sampler:
        (device,) = sampler.sample().devices
    assert device.temperature_celsius is None
    assert device.power_usage_watts is None
    assert device.state is NvmlState.OK, "it was asked, and is lost"


def test_who_wants_no_processes_does_not_ask_for_them(fake_driver):
    asked = (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization",
    )
    fake_driver.play(CARD, "process 0 compute 77 1000", *(f"error {call} 15" for call in asked))
    with NvmlSampler(fake_driver.library, host_namespace=True, processes=False) as sampler:
        sample = sampler.sample()
    (device,) = sample.devices
    assert device.state is NvmlState.OK, "it was asked, and is lost"
    assert device.processes_state is device.utilization_state is NvmlState.NOT_ASKED
    assert sample.processes == ()
    assert sample.process(device.uuid, 77) is None, "it is not known, which is not unused"


def test_a_card_without_sensors_has_no_figure_and_no_zero(fake_driver):
    fake_driver.play(CARD, SECOND, "sensors 1 70 4000000000 0 0")
    with NvmlSampler(fake_driver.library, host_namespace=True, sensors=True) as sampler:
        first, second = sampler.sample().devices
    assert (first.temperature_celsius, first.power_usage_watts) == (None, None)
    assert first.ecc_corrected_errors is None
    assert second.temperature_celsius == 70
    assert second.ecc_uncorrected_errors == 0
    assert second.power_usage_watts is None, "a number that cannot be right"
