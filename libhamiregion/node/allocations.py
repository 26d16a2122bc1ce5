"""Which container was given which GPUs: kubelet's checkpoint of device plugins.

The file holds the plugins' own answers. It is read through the host's root, not by a mount: its
directory also holds kubelet's socket.
"""

from __future__ import annotations

import base64
import os
import re
from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from libhamiregion.observation.names import is_pod_uid
from libhamiregion.observation.share import Allocation, share_of
from libhamiregion.units import limits_from_environment

from .checkpoint import Checkpoint, json_object
from .names import LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from libhamiregion.errors import PathLike

_ENTRIES_LIMIT = 16_384
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{0,90}\Z")
_REPLICA = "::"
# Where HAMi mounts the directory of a region, unless a variable names the file.
_REGION = "/usr/local/vgpu/region.cache"
# Fields of ContainerAllocateResponse in the device plugin API.
_ENVS, _MOUNTS, _CDI_DEVICES = 1, 2, 5


def kubelet_devices(proc: PathLike = "/proc") -> str:
    """The path of kubelet's checkpoint of devices; the same whatever kubelet's --root-dir is."""
    kubelet = "1/root/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    return f"{os.fspath(proc)}/{kubelet}"


def device_checkpoint(path: str) -> Checkpoint[tuple[Allocation, ...]]:
    """The allocations of GPUs, kept up to date with a file."""
    return Checkpoint(path, parse_devices, "what containers were given is not known")


def by_directory(allocations: Iterable[Allocation]) -> dict[str, list[Allocation]]:
    """Sort allocations by their pod and the name of the directory that came with them."""
    found: defaultdict[str, list[Allocation]] = defaultdict(list)
    for each in allocations:
        if each.region_directory is not None:
            found[f"{each.pod_uid}/{PurePath(each.region_directory).name}"].append(each)
    return found


def parse_devices(raw: bytes) -> tuple[Allocation, ...]:
    """Read the allocations of GPUs from a checkpoint of kubelet 1.18 and later.

    Raises:
        ValueError: The file is no checkpoint, or damaged.
    """
    entries = _field(_field(json_object(raw), "Data", dict), "PodDeviceEntries", list, ())
    if len(entries) > _ENTRIES_LIMIT:
        raise ValueError(f"more than {_ENTRIES_LIMIT:,} entries")
    found = map(_allocation, entries)
    return tuple(each for each in found if each.uuids or each.share.is_limited)


def _allocation(entry: Any) -> Allocation:
    if not isinstance(entry, dict):
        raise ValueError("an entry is no object")
    pod_uid, container = _field(entry, "PodUID", str), _field(entry, "ContainerName", str)
    if not (is_pod_uid(pod_uid) and LABEL.match(container)):
        raise ValueError("an entry without a container")
    given = _field(entry, "DeviceIDs", (dict, list), [])
    lists = [each or [] for each in given.values()] if isinstance(given, dict) else [given]
    if not all(isinstance(each, list) for each in lists):
        raise ValueError("devices are no list")
    ids = [id_ for each in lists for id_ in each]
    if not all(isinstance(each, str) for each in ids):
        raise ValueError("a device without an id")
    answer = list(fields(base64.b64decode(_field(entry, "AllocResp", str, ""), validate=True)))
    pairs = [_texts(value) for number, value in answer if number == _ENVS]
    variables = {each.get(1, ""): each.get(2, "") for each in pairs}
    mounts = [_texts(value) for number, value in answer if number == _MOUNTS]
    cdi = [_texts(value).get(1, "") for number, value in answer if number == _CDI_DEVICES]
    region = PurePath(variables.get("CUDA_DEVICE_MEMORY_SHARED_CACHE", _REGION)).parent
    directories = [each.get(2) for each in mounts if each.get(1) == str(region)]
    share = share_of(variables)
    named = [
        *variables.get("NVIDIA_VISIBLE_DEVICES", "").split(","),
        *(each.rpartition("=")[2] for each in cdi),
    ]
    # What plugins write, such as 4096m, all releases read alike.
    limits = limits_from_environment(variables, hami_version="2.11")
    # HAMi's ids are replicas, of which kubelet picks any.
    own = () if share.is_limited else (each.partition(_REPLICA)[0] for each in ids)
    return Allocation(
        pod_uid,
        container,
        _field(entry, "ResourceName", str),
        _uuids(named) or _uuids(own),
        share,
        directories[0] if directories else None,
        is_replica=any(_REPLICA in each for each in ids),
        limits=limits if share.is_limited else None,
    )


def _uuids(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for each in names if _UUID.match(each)))


def _field(owner: dict[str, Any], name: str, kind: Any, default: Any = None) -> Any:
    value = owner.get(name)
    if value is None and default is not None and name in owner:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{name} is missing, or of another type")
    return value


# ---- protobuf ------------------------------------------------------------------------------------


def fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message that have a length, by number; others are left out.

    Raises:
        ValueError: The message is damaged.
    """
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind, start = tag & 7, at
        if kind == 0:
            _, at = _varint(raw, at)
        elif kind == 2:
            size, start = _varint(raw, at)
            at = start + size
        elif kind in {1, 5}:
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("a field of an unknown kind")
        if at > len(raw):
            raise ValueError("a field that is cut")
        if kind == 2:
            yield tag >> 3, raw[start:at]


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(raw[at : at + 10]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    raise ValueError("a number that does not end")


def _texts(raw: bytes) -> dict[int, str]:
    """The text fields of a message; UnicodeDecodeError is a ValueError."""
    return {number: value.decode() for number, value in fields(raw)}
