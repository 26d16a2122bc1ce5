"""Asking a driver that may never answer: a hung GPU must not hold up what has to do with none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .models import NvmlSample
    from .sampler import NvmlSampler


class TimeoutSampler:
    """Asks a sampler in a thread of its own, and waits for so long and no longer.

    NVML has no timeouts: after some faults of a GPU, or of the driver, a question is never
    answered, and the thread that asked cannot be ended. Then there is no sample until that question
    comes back; nobody waits for it again, and no second one is asked meanwhile.

    Threads: one at a time.

    Args:
        sampler: What asks the driver.
        timeout_s: How long to wait for an answer.
    """

    def __init__(self, sampler: NvmlSampler, timeout_s: float = 5.0) -> None:
        self._sampler = sampler
        self._timeout_s = timeout_s
        self._question: _Question | None = None

    @property
    def hangs(self) -> bool:
        """Whether a question is open that has not been answered in time."""
        return self._question is not None

    def sample(self) -> NvmlSample | None:
        """What the driver says; None if it does not answer.

        Raises:
            Exception: What the sampler raised.
        """
        late = self._question
        if late is not None:
            if not late.done.is_set():
                return None
            # What it said is of long ago.
            self._question = None
        question = _Question(self._sampler)
        question.start()
        if not question.done.wait(self._timeout_s):
            self._question = question
            return None
        if question.error is not None:
            raise question.error
        return question.answer


class _Question(threading.Thread):
    def __init__(self, sampler: NvmlSampler) -> None:
        super().__init__(name="hamiregion-nvml", daemon=True)
        self._sampler = sampler
        self.done = threading.Event()
        self.answer: NvmlSample | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.answer = self._sampler.sample()
        except Exception as error:  # noqa: BLE001 (raised again where it was asked for)
            self.error = error
        finally:
            self.done.set()
