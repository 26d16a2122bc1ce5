"""What one process was started with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from libhamiregion.node.matching import HostProcess
    from libhamiregion.node.processes import ProcessTable

Policy: TypeAlias = Literal["default", "force", "disable"]

# The kernel lets a process have megabytes of it.
_ENVIRONMENT_LIMIT = 1 << 20
# As libvgpu compares them: these spellings and no others. Of two that are called the same, getenv()
# sees the first.
_POLICY = re.compile(rb"(?:\A|\0)GPU_CORE_UTILIZATION_POLICY=([^\0]*)")
_POLICIES: dict[bytes, Policy] = {
    b"force": "force",
    b"FORCE": "force",
    b"disable": "disable",
    b"DISABLE": "disable",
}


def policy_of(processes: ProcessTable, process: HostProcess) -> Policy:
    """What GPU_CORE_UTILIZATION_POLICY comes to in a process; the default where not known."""
    return processes.fact(process, "environ", _ENVIRONMENT_LIMIT, _policy_in) or "default"


def _policy_in(environment: bytes) -> Policy:
    found = _POLICY.search(environment)
    return "default" if found is None else _POLICIES.get(found[1], "default")
