"""Threads: how many there are, what they share, and how many of them BLAS may use.

Nothing here knows of GPT. NumPy lets go of Python's lock while it computes, so plain threads keep all cores
busy as long as each works on arrays of its own. This is the only module that touches threads or BLAS's.

    team = Team(2)
    with team.at_work():                       # BLAS keeps to one thread per caller; the team does the rest
        team.run([first_half, second_half])    # or, inside of kernels: share(function, 1000, cost=300)
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


class Team:
    """A fixed number of threads that work at the same time; the caller is one of them.

    Args:
        size: how many threads, at least 1; None means `default_threads()`.
        worth_a_thread: how many numbers must be touched to outweigh waking a thread, which takes some fifty
            microseconds.
        cache_bytes: what one core's own cache holds: about a megabyte, or half of that, on most.

    Raises:
        ValueError: for a size below 1.
    """

    def __init__(
        self, size: int | None = None, *, worth_a_thread: int = 200_000, cache_bytes: int = 1024 * 1024
    ) -> None:
        self.size = default_threads() if size is None else operator.index(size)
        self.worth_a_thread = worth_a_thread
        self.cache_bytes = cache_bytes
        if self.size < 1:
            raise ValueError(f"threads must be at least 1, not {size}")

    def run(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return what each task returns, in their order; all have ended when this returns or raises.

        There may be at most as many tasks as threads. The first runs on the caller's own thread.

        Raises:
            Whatever a task raised: the first in their order.
        """
        assert 1 <= len(tasks) <= self.size
        # Each in a copy of the caller's context, where NumPy keeps what it does about overflow and its kind.
        others = [_helpers(self.size).submit(contextvars.copy_context().run, task) for task in tasks[1:]]
        try:
            first = tasks[0]()
        finally:
            for other in others:
                other.exception()  # waits: the arrays that it works on are the caller's
        return [first, *(other.result() for other in others)]

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Within the context, `share` on this thread means this team, and BLAS itself starts no threads."""
        before = current_team()
        with blas_threads(1):
            _current.team = self
            try:
                yield
            finally:
                _current.team = before


ALONE = Team(1)
_current = threading.local()  # .team: whom the running thread may share its work with


def current_team() -> Team:
    """Return whom the running thread may share its work with: a team of itself, but for `Team.at_work`."""
    team: Team = getattr(_current, "team", ALONE)
    return team


def share(function: Callable[[int, int], Any], count: int, *, cost: float) -> None:
    """Call function(start, stop) on spans that cover range(count), at the same time on the team's threads.

    Args:
        function: must write to no place that another span writes to.
        count: how much there is to do.
        cost: of one of them, in numbers touched; what is too little for two threads stays in one.
    """
    team = current_team()
    parts = max(1, min(team.size, count, int(count * cost / team.worth_a_thread)))
    if parts == 1:
        function(0, count)
        return
    edges = [count * part // parts for part in range(parts + 1)]
    team.run([functools.partial(function, *span) for span in itertools.pairwise(edges)])


def share_chunks(function: Callable[[slice], Any], count: int, item_bytes: int) -> None:
    """Call function(slice) on chunks of range(count) that stay in cache, shared among the team's threads.

    Several passes over one chunk cost little more than one, where several passes over a large array would
    each go through memory. Where the chunks begin does not depend on the number of threads.

    Args:
        function: must write to no place that another chunk writes to.
        count: of items, rows for instance.
        item_bytes: the size of one item.
    """
    # Four to six arrays are in play at once, which speaks for smaller chunks; but after every pass over one a
    # thread may have to wait for Python's lock, and on shorter passes two threads are slower than one.
    chunk_bytes = current_team().cache_bytes // 2
    step = max(1, chunk_bytes // max(item_bytes, 1))

    def span(first: int, last: int) -> None:
        for chunk in range(first, last):
            function(slice(chunk * step, min((chunk + 1) * step, count)))

    share(span, -(-count // step), cost=step * item_bytes / 4)


@functools.cache
def _helpers(team_size: int) -> ThreadPoolExecutor:
    """Return the threads beside the caller's, started on first use and kept for the process's life."""
    # A helper may have to wait for another caller's task, but never for a task of its own team.
    return ThreadPoolExecutor(team_size - 1, thread_name_prefix="numpy_gpt")


@functools.cache
def default_threads() -> int:
    """Return how many threads this process can really run at once.

    The least of the cores it may run on, those of its container's quota, and the physical cores: two
    threads on one core's halves compete for the same arithmetic units, and slow matrix products down.
    """
    return max(1, min(_permitted_cores(), _quota_cores(), _physical_cores()))


def _permitted_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the whole cores of a container's time quota, version 2 or 1 of control groups."""
    unlimited = sys.maxsize
    with contextlib.suppress(OSError, ValueError):
        quota, period = (root / "cpu.max").read_text().split()
        return unlimited if quota == "max" else max(1, int(quota) // int(period))
    with contextlib.suppress(OSError, ValueError):
        allowed = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
        return unlimited if allowed < 0 else max(1, allowed // period_us)
    return unlimited


def _physical_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the number of distinct cores among those permitted, where the system tells."""
    if not hasattr(os, "sched_getaffinity"):
        return sys.maxsize
    try:
        cores = {
            (root / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in os.sched_getaffinity(0)
        }
    except OSError:
        return sys.maxsize
    return len(cores)


_blas_lock = threading.Lock()
_blas_limits: list[int] = []  # of every context that is open now, oldest first
_blas_before: list[Any] = []  # how it was before the oldest of them


@contextlib.contextmanager
def blas_threads(limit: int | None) -> Iterator[None]:
    """Within the context, let the BLAS library use at most `limit` threads; None leaves it alone.

    The limit holds for the whole process. Where several contexts are open at once, on this thread or on
    others, the smallest limit holds, and the last to close puts back what was before the first. Where
    `blas_is_steerable()` is false, nothing happens.
    """
    if limit is None:
        yield
        return
    with _blas_lock:
        if not _blas_limits:
            _blas_before.append(_blas_libraries().limit(limits=limit))
        elif limit < min(_blas_limits):
            _blas_libraries().limit(limits=limit)
        _blas_limits.append(limit)
    try:
        yield
    finally:
        with _blas_lock:
            _blas_limits.remove(limit)
            if not _blas_limits:
                _blas_before.pop().restore_original_limits()
            else:
                _blas_libraries().limit(limits=min(_blas_limits))


def blas_is_steerable() -> bool:
    """Return whether BLAS's threads can be set: OpenBLAS's and MKL's can, Apple Accelerate's cannot."""
    return len(_blas_libraries()) > 0


@functools.cache
def _blas_libraries() -> Any:
    """Return threadpoolctl's hold on NumPy's BLAS: milliseconds to find, microseconds to steer."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
