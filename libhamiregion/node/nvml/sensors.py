"""A GPU's sensors: temperature, power, memory errors. Asked only by who wants them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

from .driver import plausible_figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver import Driver

T = TypeVar("T")

# nvmlTemperatureSensors_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t.
_GPU = 0
_CORRECTED, _UNCORRECTED = 0, 1
_LIFETIME = 1

# Wider than any hardware.
_CELSIUS = (0, 300)
_MILLIWATTS = (0, 100_000_000)
_ERRORS = (0, (1 << 63) - 1)


class Sensors(TypedDict, total=False):
    """The fields of `NvmlDevice` that come from here."""

    temperature_celsius: int | None
    power_usage_watts: float | None
    ecc_corrected_errors: int | None
    ecc_uncorrected_errors: int | None


NOT_ASKED = Sensors()


class Ask(Protocol):
    """Asks for one figure; what fails becomes a fault and None."""

    def __call__(self, figure: str, read: Callable[[], T]) -> T | None:
        """Ask."""


def read_sensors(driver: Driver, ask: Ask, handle: Any) -> Sensors:
    """Temperature in degrees Celsius, power in watts, corrected and uncorrected memory errors.

    Calls ``nvmlDeviceGetTemperature``, ``nvmlDeviceGetPowerUsage`` and
    ``nvmlDeviceGetTotalEccErrors``.
    """

    def figure(call: str, limits: tuple[int, int], *args: int) -> int:
        return plausible_figure(call, driver.call(call, handle, *args), *limits)

    def errors(kind: int) -> int:
        return figure("nvmlDeviceGetTotalEccErrors", _ERRORS, kind, _LIFETIME)

    milliwatts = ask("power_usage_watts", lambda: figure("nvmlDeviceGetPowerUsage", _MILLIWATTS))
    return Sensors(
        temperature_celsius=ask(
            "temperature_celsius", lambda: figure("nvmlDeviceGetTemperature", _CELSIUS, _GPU)
        ),
        power_usage_watts=None if milliwatts is None else milliwatts / 1000,
        ecc_corrected_errors=ask("ecc_corrected_errors", partial(errors, _CORRECTED)),
        ecc_uncorrected_errors=ask("ecc_uncorrected_errors", partial(errors, _UNCORRECTED)),
    )
