"""The form of the doctor's scenes: how a row is written, and what it promises."""

import functools
from collections.abc import Callable
from typing import Any

import attrs

from libhamiregion import Layout
from libhamiregion.doctor import FindingKind, Severity
from support.doctor_node import DoctorNode


@attrs.frozen
class Expected:
    """One finding; what is None is not compared.

    `says` stands in what people read of it; HOST_PID is the host's pid of the process that it is
    about.
    """

    kind: FindingKind
    cause: str | None = None
    severity: Severity | None = None
    pid: int | None = None
    device: int | None = None
    says: tuple[str, ...] = ()


@attrs.frozen
class Scene:
    """One row.

    Attributes:
        make: Makes it so, on a node without containers.
        found: What is found, in the doctor's order; nothing where all is well.
        mended: What the repairs say that they did, a part of it. None: a repair leaves the node as
            it is, to the byte.
        used: What device 0 of the first container counts after the repair.
    """

    make: Callable[[DoctorNode], object]
    found: tuple[Expected, ...]
    mended: tuple[str, ...] | None
    used: int | None


SCENES: dict[str, Scene] = {}


def scene(
    *found: Expected,
    mended: tuple[str, ...] | None = None,
    used: int | None = None,
    layouts: tuple[Layout, ...] = (Layout.V1_2,),
    **arguments: Any,
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Add the function as a row, under its name; it gets the node, a layout and the arguments."""

    def add(make: Callable[..., object]) -> Callable[..., object]:
        for layout in layouts:
            varied = [layout.value] if layout is not Layout.V1_2 or len(layouts) > 1 else []
            varied += [f"{name} {value}" for name, value in arguments.items()]
            name = " ".join(make.__name__.split("_")) + "".join(f", {each}" for each in varied)
            assert name not in SCENES
            made = functools.partial(make, layout=layout, **arguments)
            SCENES[name] = Scene(made, found, mended, used)
        return make

    return add


def container_scene(
    *found: Expected, **options: Any
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """As `scene`, for a function that gets a container of the node in place of both."""

    def add(make: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(make)
        def made(node: DoctorNode, layout: Layout, **arguments: Any) -> object:
            return make(node.container(layout=layout), **arguments)

        scene(*found, **options)(made)
        return make

    return add
