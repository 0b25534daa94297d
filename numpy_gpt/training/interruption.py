"""Ctrl-C and termination: as an exception that lets everything tidy up, or in training as a wish."""

from __future__ import annotations

import atexit
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeAlias

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_Handler: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers


class Terminated(KeyboardInterrupt):
    """SIGTERM, made the exception that Ctrl-C is, so that whoever tidies up after one does after both."""


@contextlib.contextmanager
def tidy_interruption() -> Iterator[None]:
    """Within the context, SIGINT raises KeyboardInterrupt and SIGTERM Terminated.

    Another signal does not disturb what tidies up after the first, nor does it change the exit code; a third
    ends the process.

    Must be entered in the main thread, as Python requires of whoever handles signals.
    """

    def end(number: int, frame: FrameType | None) -> None:
        _handle_by(let_it_tidy_up)
        atexit.register(_handle_by, signal.SIG_IGN)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def let_it_tidy_up(number: int, frame: FrameType | None) -> None:
        _handle_by(signal.SIG_DFL)

    with _restored_afterwards():
        _handle_by(end)
        yield


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

    with _restored_afterwards() as restore:

        def take_note(number: int, frame: FrameType | None) -> None:
            interruption.signal_number = number
            restore()
            atexit.register(_handle_by, signal.SIG_IGN)

        _handle_by(take_note)
        yield interruption


def _handle_by(handler: _Handler) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


@contextlib.contextmanager
def _restored_afterwards() -> Iterator[Callable[[], None]]:
    """Yield what brings back the present handlers of both signals, and do it at the end."""
    previous = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    try:
        yield restore
    finally:
        restore()
