"""A FastAPI application with the node's metrics, and its containers as JSON.

    pip install 'libhamiregion[exporter]' fastapi uvicorn
    HAMI_ROOT=/usr/local/vgpu/containers uvicorn --app-dir examples fastapi_app:app

What it shows: a route of the application serves the exporter's text.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response

from libhamiregion.exporter import CONTENT_TYPE, NodeExporter
from libhamiregion.node import Node

logging.basicConfig()  # what cannot be looked at, such as a wrong root, is a warning
node = Node(os.environ.get("HAMI_ROOT"))
exporter = NodeExporter(node)


@asynccontextmanager
async def running(_app: FastAPI) -> AsyncIterator[None]:
    with node:
        yield


app = FastAPI(lifespan=running)


@app.get("/metrics")
def metrics() -> Response:
    """Every metric of the node, as text."""
    return Response(exporter.render(), media_type=CONTENT_TYPE)


@app.get("/containers")
def containers() -> list[dict[str, Any]]:
    """Every container that has a region, with its snapshot."""
    node.refresh(processes=False)
    return [
        {"pod": each.pod_uid, "container": each.name, **each.region.snapshot().to_dict()}
        for each in node.containers
        if each.region is not None
    ]
