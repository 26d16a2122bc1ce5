"""Where regions lie: the roots of the systems that make them, and how their directories are called.

docs/node.md has the versions that this was established from.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

#: HAMi's and KAI's resource isolator's, volcano-vgpu's from 1.12 on, volcano-vgpu's before, and
#: HAMi's DRA driver's.
DEFAULT_ROOTS = (
    "/usr/local/vgpu/containers",
    "/usr/local/vgpu/vgpu/containers",
    "/tmp/vgpu/containers",  # noqa: S108 (where they are)
    "/usr/local/vgpu/claims",
)

# Pattern of a root, and how the directories in it are called; the first that fits counts. The
# groups are attributes of `Container`. By the root, because a container of KAI's can make
# directories beside its own, and must not make one that passes for a claim.
_PLACES = (
    ("*/claims", re.compile(r"(?P<claim_uid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")),
    ("*", re.compile(r"(?P<pod_uid>[^_]+)_(?P<directory_name>.+)", re.DOTALL)),
)


def read_name(root: str, directory_name: str) -> dict[str, str] | None:
    """Whose a directory is, as attributes of `Container`; None if it is nobody's.

    >>> read_name("/usr/local/vgpu/containers", "0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f_train_0")
    {'pod_uid': '0b5c1e64-27a1-4a1c-8a3c-7ab0d3ad3b0f', 'directory_name': 'train_0'}
    >>> read_name("/usr/local/vgpu/claims", "6f1c0d8e-9f2b-4f0a-8a51-0c5f6d1e2a3b")
    {'claim_uid': '6f1c0d8e-9f2b-4f0a-8a51-0c5f6d1e2a3b'}
    """
    names = next(names for pattern, names in _PLACES if fnmatchcase(root, pattern))
    found = names.fullmatch(directory_name)
    return None if found is None else found.groupdict()
