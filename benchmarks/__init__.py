"""How fast, how large, and against whom: `python -m benchmarks`, run from a checkout.

    python -m benchmarks step --quick                   a whole training step against torch, in two minutes
    python -m benchmarks step --out mine.json           every case and every opponent; takes hours
    python -m benchmarks compare mine.json theirs.json

The parent process measures nothing itself: each measurement is a fresh process (`benchmarks.worker`) that
builds, warms up, times and prints one line of JSON. A and B take turns and never run at once. Before
anything is timed, its results are held against torch's.

Read it in this order: cases, flops, opponents/, checking, tasks, worker; then processes, pairing, statistics,
results; then one file for each command, and report and plots, which show what came out.
"""
