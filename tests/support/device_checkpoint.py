"""kubelet's checkpoint of devices, as it and device plugins write it."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    raw = b""
    while number > 0x7F:
        raw += bytes([number & 0x7F | 0x80])
        number >>= 7
    return raw + bytes([number])


def answer(
    envs: Mapping[str, str] | None = None,
    *,
    mounts: Mapping[str, str] | None = None,
    cdi: Sequence[str] = (),
) -> bytes:
    """A ContainerAllocateResponse; mounts are container path to host path."""

    def pair(number: int, first: str, second: str, *more: bytes) -> bytes:
        inner = field(1, first.encode()) + field(2, second.encode()) + b"".join(more)
        return field(number, inner)

    return b"".join(
        (
            *(pair(1, name, value) for name, value in (envs or {}).items()),
            *(pair(2, inside, host, field(3, 1)) for inside, host in (mounts or {}).items()),
            pair(3, "/dev/nvidiactl", "/dev/nvidiactl", field(3, b"rw")),
            pair(4, "key", "value"),
            *(field(5, field(1, name.encode())) for name in cdi),
        )
    )


def entry(
    pod_uid: str, container: str, resource: str, ids: object, response: bytes | None
) -> dict[str, Any]:
    """An entry of PodDeviceEntries."""
    text = None if response is None else base64.b64encode(response).decode()
    return {
        "PodUID": pod_uid,
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": ids,
        "AllocResp": text,
    }


def checkpoint(*entries: dict[str, Any], **more: object) -> str:
    """The file."""
    registered = {"nvidia.com/gpu": ["GPU-x::0"], "rdma/hca": None}
    data = {"PodDeviceEntries": list(entries) or None, "RegisteredDevices": registered}
    return json.dumps({"Data": data, "Checksum": 1_234_567_890, **more})
