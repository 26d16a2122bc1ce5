"""Shrink idle containers (STATE ROOT) and restore them in the morning (STATE)."""

import json
import sys
from pathlib import Path

import libhamiregion as hami
from libhamiregion.node import Node

state, edits = Path(sys.argv[1]), list[hami.LimitChange]()
if not sys.argv[2:]:
    edits += map(hami.LimitChange.from_dict, json.loads(state.read_text()))
    print(*hami.undo(edits), sep="\n")
    state.unlink()
    sys.exit()
with Node(sys.argv[2]) as node:
    node.refresh(processes=False)  # raises for a wrong root
    for region in [each.region for each in node.containers if each.region is not None]:
        snapshot = region.snapshot()
        for each in snapshot.devices if (snapshot.idle_s or 0) > 3600 else ():
            least = max(each.memory_used_bytes, 2**28)
            if (each.memory_limit_bytes or 0) > least:
                edits += [region.set_memory_limit(least, device=each.index, dry_run=True)]
with state.open("x") as stream:  # on disk before the first edit, and never overwritten
    json.dump([edit.to_dict() for edit in edits], stream)
for edit in edits:
    with hami.open_region(edit.path, writable=True) as file:
        print(file.set_memory_limit(edit.after, device=edit.device, expected=edit.before))
