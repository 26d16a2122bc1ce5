"""The share of GPUs that a container was given, as variables or kubelet name it."""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING

import attrs

from libhamiregion.layouts import DEVICE_CAPACITY
from libhamiregion.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libhamiregion.units import EnvironmentLimits

_SIZE = re.compile(r"([0-9]{1,15})([kmg]?)\Z", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}
# As Go's strconv.ParseBool reads it, by which HAMi leaves libvgpu out of a container.
_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
_MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"


@attrs.frozen
class Share:
    """What a container's environment says of its share of GPUs.

    Attributes:
        memory_limits_bytes: The memory limits, of any device; empty without one.
        sm_limit_percent: The SM limit; None without one.
        is_switched_off: Whether CUDA_DISABLE_CONTROL switches libvgpu off.
        uses_mps: Whether it is a client of the MPS server.
        is_oversubscribed: Whether its limits may be more than the card: HAMi scales memory.
        is_known: Whether the environment could be read.
    """

    memory_limits_bytes: tuple[int, ...] = ()
    sm_limit_percent: int | None = None
    is_switched_off: bool = False
    uses_mps: bool = False
    is_oversubscribed: bool = False
    is_known: bool = True

    @property
    def is_limited(self) -> bool:
        """Whether it has a limit, be it as large as a card."""
        return bool(self.memory_limits_bytes or self.sm_limit_percent)

    def is_part_of(self, card_bytes: int | None) -> bool:
        """Whether it limits a container to less than a card.

        Args:
            card_bytes: The card's memory; None if that is not known.
        """
        # HAMi's limits are whole MiB.
        whole_bytes = inf if card_bytes is None else card_bytes - MIB
        return 0 < (self.sm_limit_percent or 0) < 100 or any(
            each <= whole_bytes for each in self.memory_limits_bytes
        )


def share_of(variables: Mapping[str, str]) -> Share:
    """Read a share from environment variables.

    >>> share_of({"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m"}).memory_limits_bytes
    (4294967296,)
    """
    limits = (_size(text) for name, text in variables.items() if name.startswith(_MEMORY_LIMIT))
    sm_limit = variables.get("CUDA_DEVICE_SM_LIMIT", "")
    return Share(
        tuple(each for each in limits if each),
        int(sm_limit) if re.fullmatch("[0-9]{1,3}", sm_limit) else None,
        variables.get("CUDA_DISABLE_CONTROL") in _TRUE,
        "CUDA_MPS_PIPE_DIRECTORY" in variables,
        variables.get("CUDA_OVERSUBSCRIBE") in _TRUE,
    )


def _size(text: str) -> int:
    found = _SIZE.match(text)
    return 0 if found is None else int(found[1]) << _UNITS[found[2].lower()]


@attrs.frozen
class Allocation:
    """What a device plugin gave to a container, as kubelet has noted it.

    Attributes:
        pod_uid: UID of the pod.
        container: Name of the container.
        resource: Such as ``nvidia.com/gpu``.
        uuids: The GPUs or MIG devices; empty if they are not named by uuid.
        share: The limits.
        limits: Those limits by device, as libvgpu reads them; None without any.
        region_directory: The directory of the container's region on the host.
        is_replica: Whether several containers can be given the same device.
    """

    pod_uid: str
    container: str
    resource: str
    uuids: tuple[str, ...]
    share: Share
    region_directory: str | None = None
    is_replica: bool = False
    limits: EnvironmentLimits | None = None

    @property
    def key(self) -> str:
        """The container's key in ``Observation.names``."""
        return f"{self.pod_uid}/{self.container}"

    def limits_of(self, index: int) -> tuple[int | None, int | None]:
        """The memory limit in bytes, and the SM limit in percent, of one of the devices."""
        if self.limits is None or index >= DEVICE_CAPACITY:
            return None, None
        return self.limits.memory_limits_bytes[index], self.limits.sm_limits_percent[index]
