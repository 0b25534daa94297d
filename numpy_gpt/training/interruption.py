"""Ctrl-C and termination as a wish, not as a blow: the step in flight is finished first."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interruption:
    """Whether a signal has asked the run to end.

    Attributes:
        signal_number: the signal that came, or None.
    """

    signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None


@contextlib.contextmanager
def gentle_interruption() -> Iterator[Interruption]:
    """Within the context, the first SIGINT or SIGTERM only sets the yielded flag; a second ends at once.

    Must be entered in the main thread, as Python requires of whoever handles signals.
    """
    interruption = Interruption()
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def take_note(number: int, frame: FrameType | None) -> None:
        interruption.signal_number = number
        restore()

    for number in previous:
        signal.signal(number, take_note)
    try:
        yield interruption
    finally:
        restore()
