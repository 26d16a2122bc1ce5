"""A FastAPI application with the node's metrics, and its containers as JSON.

    pip install '.[exporter]' fastapi uvicorn    # in a clone of libhamiregion
    HAMI_ROOT=/usr/local/vgpu/containers uvicorn --app-dir examples fastapi_app:app

What it shows: one observer serves all routes. Requests at the same time share an observation, which
is a value: containers that come and go meanwhile do not change it, and a region that cannot be read
is an entry with its error, not the end of the answer.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from libhamiregion.exporter import CONTENT_TYPE, NodeExporter
from libhamiregion.node import ContainerDetails, Node, Observer

logging.basicConfig()  # a directory that cannot be read, such as a wrong root, is a warning


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Not at import: a server may import the application and fork its workers afterwards.
    with Node(os.environ.get("HAMI_ROOT")) as node:
        app.state.observer = Observer(node)
        app.state.exporter = NodeExporter(node, observer=app.state.observer)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/metrics")
def metrics(request: Request) -> Response:
    """Serve every metric of the node, as text."""
    return Response(request.app.state.exporter.render(), media_type=CONTENT_TYPE)


@app.get("/containers")
def containers(request: Request) -> list[dict[str, Any]]:
    """List every container, with its snapshot, or the reason why there is none."""
    observation = request.app.state.observer.observe(max_age_s=1.0)
    try:
        return [as_json(each) for each in observation.details()]
    except OSError as error:
        raise HTTPException(503, f"/proc cannot be read: {error}") from None


def as_json(details: ContainerDetails) -> dict[str, Any]:
    container = details.container
    found: dict[str, Any] = {
        "namespace": container.namespace,
        "pod": container.pod,
        "pod_uid": container.pod_uid,
        "container": container.name,
    }
    if details.snapshot is not None:
        return found | details.snapshot.to_dict()
    if container.missing is not None:
        return found | {"error": container.missing.message}
    return found | {"error": str(details.error or "it is being replaced; ask again")}
