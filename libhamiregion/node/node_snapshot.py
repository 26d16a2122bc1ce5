"""All regions of a node, as they were read at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from libhamiregion.region_set import RegionTable

    from .containers import Container


@attrs.frozen
class NodeSnapshot:
    """All regions of a node, read in one native call.

    Attributes:
        containers: The containers with a region, one per row of ``table.regions``.
        missing: The containers without.
        table: The figures, as `RegionSet.read` gives them.
    """

    containers: tuple[Container, ...]
    missing: tuple[Container, ...]
    table: RegionTable

    def named_table(self) -> RegionTable:
        """Give the figures the columns namespace, pod and container too, in their frames.

        ``snapshot.named_table().devices.to_pandas()`` says whose each row is. A name that is not
        known is null; the pod's UID is part of the path.
        """
        return self.table.with_identity(
            namespace=[each.namespace for each in self.containers],
            pod=[each.pod for each in self.containers],
            container=[each.name for each in self.containers],
        )

    def _repr_html_(self) -> str:
        """Show the devices in a notebook."""
        return self.named_table()._repr_html_()
