"""Shares of GPUs, and what their hours cost."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from .history import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .history import Allocation, Sample
    from .models import UnlimitedSm


def parse_prices(lines: Iterable[str]) -> dict[str, float]:
    """Read prices of a GPU's hour, each ``MODEL=PRICE``; of one model the last counts.

    Raises:
        ValueError: A line is no price.
    """
    found: dict[str, float] = {}
    for each in lines:
        model, _, price = (part.strip() for part in each.rpartition("="))
        try:
            found[model] = float(price)
        except ValueError:
            found[model] = -1.0
        if not (model and 0 <= found[model] < float("inf")):
            raise ValueError(f"{each[:60]!a} is no price of a GPU's hour, such as A100=2.10")
    return found


class Cards:
    """The GPUs that allocations have shares of, and the prices of their hours."""

    def __init__(
        self,
        devices: Mapping[str, Gpu],
        unlimited_sm_as: UnlimitedSm,
        prices: Mapping[str, float] | None,
    ) -> None:
        self._devices = devices
        self._unlimited_sm_as = unlimited_sm_as
        self._prices = prices or {}
        self._is_memory_unknown = False
        self._without_price: set[str] = set()

    def _card(self, of: Allocation) -> Gpu:
        return self._devices.get(of.device_uuid or "", Gpu())

    def share_percent(self, of: Allocation, sample: Sample) -> float | None:
        """Return an allocation's share of its GPU; None if that is not known."""
        limit, percent = sample.memory_limit_bytes, sample.sm_limit_percent
        if percent != 100 or limit is None or self._unlimited_sm_as == "whole":
            return percent
        memory_bytes = self._card(of).memory_bytes
        self._is_memory_unknown = self._is_memory_unknown or not memory_bytes
        return 100 * limit / memory_bytes if memory_bytes else None

    def price(self, of: Allocation) -> float | None:
        """Return the price of an hour of an allocation's GPU; None if there is none."""
        model = self._card(of).model
        fits = [name for name in self._prices if model and _is_model(name, model.lower())]
        if self._prices and not fits:
            self._without_price.add(model or "GPUs whose model is not known")
        return self._prices[max(fits, key=len)] if fits else None

    def warnings(self) -> Iterator[str]:
        """Yield what shares and costs leave out."""
        if self._is_memory_unknown:
            yield (
                "the memory of some GPUs is not known (recorded by an earlier version, or without"
                " the driver); GPU hours allocated leave out containers without an SM limit there"
            )
        for model in sorted(self._without_price):
            yield f"no price fits {model}; costs leave its hours out"


def _is_model(name: str, model: str) -> bool:
    wanted = name.lower()
    # A slice of a card does not cost what the card does.
    return fnmatchcase(model, f"*{wanted}*") and (
        " mig " not in model or "mig" in wanted or wanted == "*"
    )
