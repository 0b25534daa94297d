"""One file for each subcommand of `python -m benchmarks`: its options, and what it measures or shows."""
