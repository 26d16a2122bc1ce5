"""Which GPUs a program sees, in CUDA's order: that of the devices of its region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from .errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .nvml import Gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_BY_BUS = "PCI_BUS_ID"


@attrs.frozen
class Choice:
    """One GPU that the program sees.

    Attributes:
        gpu: The GPU.
        word: Its name in CUDA_VISIBLE_DEVICES.
    """

    gpu: Gpu
    word: str


@attrs.frozen
class Selection:
    """The GPUs that a program sees, and the variables that select them.

    Attributes:
        choices: One per CUDA ordinal.
        narrowed: Whether CUDA_VISIBLE_DEVICES has to change.
    """

    choices: tuple[Choice, ...]
    narrowed: bool = False

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """One per CUDA ordinal, which is the index of the device in the region."""
        return tuple(choice.gpu for choice in self.choices)

    def variables(self) -> dict[str, str]:
        """The variables of the selection in the program's environment."""
        # Without it CUDA counts the fastest GPU first, and its ordinals would not be ours.
        said = {ORDER: _BY_BUS}
        if self.narrowed:
            said[VISIBLE] = ",".join(choice.word for choice in self.choices)
        return said

    def only(self, wanted: Sequence[int | str]) -> Selection:
        """Some of them, in the order wanted.

        Args:
            wanted: Indices among the GPUs that the program would see, or uuids.

        Raises:
            LaunchError: One of them does not exist, or is named twice.
        """
        chosen = [self.named(word) for word in wanted]
        if len(set(chosen)) < len(chosen):
            raise LaunchError("a GPU is named twice")
        return Selection(tuple(self.choices[index] for index in chosen), narrowed=True)

    def refuse_failed(self) -> None:
        """Refuse a GPU that the driver cannot use.

        Raises:
            LaunchError: The message has its index.
        """
        for gpu in self.gpus:
            if gpu.failure is not None:
                raise LaunchError(
                    f"GPU {gpu.index} cannot be used: {gpu.failure}; name the others by --gpus"
                )

    def only_of_region(self, uuids: Iterable[str | None]) -> Selection:
        """Select the GPUs that a region has; all, where it does not know its devices yet."""
        known = {uuid for uuid in uuids if uuid is not None}
        if not known:
            return self
        kept = tuple(choice for choice in self.choices if choice.gpu.uuid in known)
        return Selection(kept, self.narrowed or kept != self.choices)

    def named(self, word: int | str) -> int:
        """The CUDA ordinal of a GPU named by ordinal or uuid.

        Raises:
            LaunchError: There is no such GPU; the message lists those there are.
        """
        uuids = [gpu.uuid for gpu in self.gpus]
        if isinstance(word, str) and word in uuids:
            return uuids.index(word)
        text = str(word)
        if text.isascii() and text.isdecimal() and int(text) < len(uuids):
            return int(text)
        there = ", ".join(f"{index} ({uuid})" for index, uuid in enumerate(uuids))
        raise LaunchError(f"there is no GPU {text!r} here; there are {there}")


def visible_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> Selection:
    """The GPUs that a program with this environment sees, as CUDA chooses them.

    Args:
        gpus: The devices of the machine, in NVML's order.
        environment: That of the program.

    Raises:
        LaunchError: None, or it cannot be told which.
    """
    if not gpus:
        raise LaunchError("the NVIDIA driver knows no GPU that CUDA could use")
    listed = environment.get(VISIBLE)
    if listed is None:
        _refuse_unknown_order(gpus, environment)
        found = [Choice(gpu, str(gpu.index)) for gpu in gpus]
    else:
        found = _listed(gpus, listed, environment)
        if not found:
            raise LaunchError(f"{VISIBLE}={listed} hides every GPU; unset it, or name a GPU there")
    # Where it sees a MIG device, CUDA sees nothing else.
    for choice in found:
        if choice.gpu.mig:
            return Selection((Choice(choice.gpu, choice.gpu.uuid),), narrowed=True)
    return Selection(tuple(found))


def _listed(gpus: Sequence[Gpu], listed: str, environment: Mapping[str, str]) -> list[Choice]:
    found: list[Choice] = []
    for word in map(str.strip, listed.split(",")):
        if word.isascii() and word.isdecimal():
            _refuse_unknown_order(gpus, environment)
            matching = [gpu for gpu in gpus if gpu.index == int(word)][:1]
        else:
            # The beginning of a uuid will do where it fits one only.
            matching = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
        # CUDA stops at the first that it does not know.
        if len(matching) != 1 or matching[0] in [choice.gpu for choice in found]:
            break
        found.append(Choice(matching[0], word))
    return found


def _refuse_unknown_order(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> None:
    """Refuse an environment in which an index counts in an order that only CUDA knows."""
    order = environment.get(ORDER)
    counts_fastest_first = order != _BY_BUS and (order is not None or VISIBLE in environment)
    names = {gpu.name for gpu in gpus if gpu.name}
    if counts_fastest_first and len(names) > 1:
        raise LaunchError(
            "which GPU an index means cannot be told, because the fastest is counted first here: "
            f"set {ORDER}={_BY_BUS}, or name GPUs by their uuids in {VISIBLE}"
        )
