"""The way into the command line: `python -m numpy_gpt` and `numpy-gpt` are one."""

import sys

from numpy_gpt.training.interruption import end_tidily, exit_code_of, gentle_interruption


def main() -> int:
    """Run the command that the process was started with, and return its exit code."""
    end_tidily()
    try:
        # Importing takes long enough for a Ctrl-C to come meanwhile, and may lose the exception.
        with gentle_interruption() as interruption:
            from numpy_gpt.cli import main as run
        interruption.raise_if_any()
        return run()
    except KeyboardInterrupt as interrupt:
        print("numpy-gpt: interrupted", file=sys.stderr)
        return exit_code_of(interrupt)


if __name__ == "__main__":
    sys.exit(main())
