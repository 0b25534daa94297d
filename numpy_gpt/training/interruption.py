"""Ctrl-C and termination: as an exception that lets everything tidy up, or in training as a wish."""

from __future__ import annotations

import atexit
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNALLED = 128
"""What is added to a signal's number to make the exit code of a process that it ended."""


class Interrupted(KeyboardInterrupt):
    """SIGINT, or SIGTERM made the exception that Ctrl-C is: whoever tidies up after one does after both.

    A class of its own, as a bare KeyboardInterrupt that leaves `exec` makes Python end by SIGINT in any case.
    """


class Interruption:
    """Whether a signal has asked the run to end.

    Attributes:
        signal_number: the signal that came, or None.
    """

    signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """What the process ends with: 128 and the signal's number; 0 without one."""
        return 0 if self.signal_number is None else SIGNALLED + self.signal_number


def end_tidily() -> Interruption:
    """From now on, let SIGINT and SIGTERM raise Interrupted.

    Another signal does not disturb what tidies up after the first, nor does it change the exit code; a third
    ends the process.

    To be called in the main thread, as Python requires of whoever handles signals.

    Returns:
        What says whether one has come, also when the exception was lost.
    """
    interruption = Interruption()

    def end(number: int, frame: FrameType | None) -> None:
        interruption.signal_number = number
        _handle_by(let_it_tidy_up)
        atexit.register(_handle_by, signal.SIG_IGN)
        raise Interrupted

    def let_it_tidy_up(number: int, frame: FrameType | None) -> None:
        _handle_by(signal.SIG_DFL)

    _handle_by(end)
    return interruption


@contextlib.contextmanager
def gentle_interruption() -> Iterator[Interruption]:
    """Within the context, the first SIGINT or SIGTERM only sets the yielded flag; a second ends at once.

    Must be entered in the main thread, as Python requires of whoever handles signals.
    """
    interruption = Interruption()
    previous = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def take_note(number: int, frame: FrameType | None) -> None:
        interruption.signal_number = number
        restore()

    _handle_by(take_note)
    try:
        yield interruption
    finally:
        restore()


def _handle_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)
