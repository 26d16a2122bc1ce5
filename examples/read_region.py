"""Print what regions hold, one JSON object a line: `python read_region.py FILE...`."""

import json
import sys
from typing import Any

import libhamiregion as hami


def as_plain(snapshot: hami.RegionSnapshot) -> dict[str, Any]:
    return {
        "layout": snapshot.layout.value,
        "settled": snapshot.settled,
        "priority": snapshot.priority,
        "owner_pid": snapshot.owner_pid,
        "devices": [
            {
                "index": device.index,
                "uuid": device.uuid,
                "memory_limit_bytes": device.memory_limit_bytes,
                "memory_used_bytes": device.memory_used_bytes,
                "sm_limit_percent": device.sm_limit_percent,
                "sm_util_percent": device.sm_util_percent,
            }
            for device in snapshot.devices
        ],
        "processes": [
            {
                "pid": process.pid,
                "host_pid": process.host_pid,
                "status": process.status,
                "memory_used_bytes": [usage.memory_used_bytes for usage in process.devices],
            }
            for process in snapshot.processes
        ],
    }


for path in sys.argv[1:]:
    with hami.open_region(path) as region:
        print(json.dumps(as_plain(region.snapshot())))
