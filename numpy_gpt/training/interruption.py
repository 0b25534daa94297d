"""Ctrl-C and termination: as an exception that lets everything tidy up, or in training as a wish."""

from __future__ import annotations

import atexit
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """SIGINT, or SIGTERM made the exception that Ctrl-C is: whoever tidies up after one does after both.

    Attributes:
        signal_number: the signal that came.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """Return what a process ends with after a signal: 128 and the signal's number."""
    return 128 + (interrupt.signal_number if isinstance(interrupt, Interrupted) else signal.SIGINT)


def end_tidily() -> None:
    """From now on, let SIGINT and SIGTERM raise Interrupted.

    Another signal does not disturb what tidies up after the first, nor does it change the exit code; a third
    ends the process.

    To be called in the main thread, as Python requires of whoever handles signals.
    """

    def end(number: int, frame: FrameType | None) -> None:
        _handle_by(let_it_tidy_up)
        atexit.register(_handle_by, signal.SIG_IGN)
        raise Interrupted(number)

    def let_it_tidy_up(number: int, frame: FrameType | None) -> None:
        _handle_by(signal.SIG_DFL)

    _handle_by(end)


class Interruption:
    """Whether a signal has asked the run to end.

    Attributes:
        signal_number: the signal that came, or None.
    """

    signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def raise_if_any(self) -> None:
        """Raise Interrupted when a signal has come."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number)


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
