"""The way into the command line: `python -m numpy_gpt` and `numpy-gpt` are one."""

import signal
import sys

from numpy_gpt.training.interruption import end_tidily, gentle_interruption


def main() -> int:
    """Run the command that the process was started with, and return its exit code."""
    ending = end_tidily()
    try:
        # Importing takes long enough for a Ctrl-C to come meanwhile, and may lose the exception.
        with gentle_interruption() as early:
            from numpy_gpt.cli import main as run
        if early.signal_number is not None:
            signal.raise_signal(early.signal_number)
        code = run()
    except BaseException:
        if not ending:
            raise
        # On its way through other people's code an interrupt may have become something else.
        print("numpy-gpt: interrupted", file=sys.stderr)
    return ending.exit_code if ending else code


if __name__ == "__main__":
    sys.exit(main())
