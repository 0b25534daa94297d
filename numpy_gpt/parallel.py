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
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

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
        """Return what each task returns, in their order; none is running when this returns or raises.

        There may be at most as many tasks as threads. The first runs on the caller's own thread, and so does
        every other that no thread has begun by then. After an error those that nobody has begun are left.

        Raises:
            Whatever a task raised: the first in their order.
        """
        assert 1 <= len(tasks) <= self.size
        errands = [_Errand(task) for task in tasks]
        is_interrupted = False
        try:
            for errand in errands[1:]:
                # Python starts no threads any more when it ends: then the caller does everything.
                with contextlib.suppress(RuntimeError):
                    _helpers(self.size).submit(errand.do)
            for errand in errands:
                errand.do()
                if errand.error is not None:
                    break
        finally:
            # The arrays that the others work on are the caller's, so an interrupt has to wait for them.
            begun = list(errands)
            while begun:
                try:
                    begun[-1].call_off()
                    begun.pop()
                except KeyboardInterrupt:
                    is_interrupted = True
        if is_interrupted:
            raise KeyboardInterrupt
        try:
            return [errand.outcome() for errand in errands]
        finally:
            for errand in errands:
                errand.error = None  # it holds the frames that hold it, and all that they work on

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


class _Errand(Generic[Result]):
    """A task that is done once, by whichever thread comes first."""

    result: Result
    error: BaseException | None = None

    def __init__(self, task: Callable[[], Result]) -> None:
        # A copy of the caller's context, where NumPy keeps what it does about overflow and its kind.
        self._task: Callable[[], Result] | None = functools.partial(contextvars.copy_context().run, task)
        self._in_hand = threading.Lock()

    def do(self) -> None:
        """Do it; where another thread is at it, wait until it is done."""
        with self._in_hand:
            task, self._task = self._task, None
            if task is not None:
                try:
                    self.result = task()
                except BaseException as error:
                    self.error = error  # for the caller, whichever thread this is

    def call_off(self) -> None:
        """See to it that nobody begins it any more; where a thread is at it, wait until it is done."""
        with self._in_hand:
            self._task = None

    def outcome(self) -> Result:
        """Return what the task returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self.result


@functools.cache
def _helpers(team_size: int) -> ThreadPoolExecutor:
    """Return the threads beside the caller's, started on first use and kept for the process's life."""
    return ThreadPoolExecutor(team_size - 1, thread_name_prefix="numpy_gpt")


@functools.cache
def default_threads() -> int:
    """Return how many threads this process can really run at once.

    The least of the cores it may run on, those of its container's quota, and, on Linux, which tells them
    apart, the physical cores: two threads on one core's halves compete for the same arithmetic units, and
    slow matrix products down.
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


class _Claim:
    """A limit to BLAS's threads, which holds for as long as this object lives and is among `_claims`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit


_blas_lock = threading.RLock()
_claims: weakref.WeakSet[_Claim] = weakref.WeakSet()  # of every context that is open now
_blas_before: dict[Any, int] = {}  # each library's threads before the first of them


@contextlib.contextmanager
def blas_threads(limit: int | None) -> Iterator[None]:
    """Within the context, let the BLAS library use `limit` threads; None leaves it alone.

    The limit holds for the whole process. Where several contexts are open at once, on this thread or on
    others, the smallest limit holds, and the last to close puts back what was before the first. Where
    `blas_is_steerable()` is false, nothing happens.
    """
    if limit is None:
        yield
        return
    claim = _Claim(limit)
    # Should an interrupt cut the last lines short, the claim dies with this frame, and its limit with it.
    last_resort = weakref.finalize(claim, _steer_blas)
    try:
        with _blas_lock:
            _claims.add(claim)
            _steer_blas()
        yield
    finally:
        with _blas_lock:
            _claims.discard(claim)
            _steer_blas()
        last_resort.detach()


def _steer_blas() -> None:
    """Give BLAS as many threads as the smallest claim says; without any, as many as it had before."""
    with _blas_lock:
        limit = min((claim.limit for claim in _claims), default=None)
        for library in _blas_libraries().lib_controllers:
            if limit is not None:
                _blas_before.setdefault(library, library.num_threads)
                library.set_num_threads(limit)
            elif library in _blas_before:
                library.set_num_threads(_blas_before[library])
        if limit is None:
            _blas_before.clear()


def blas_is_steerable() -> bool:
    """Return whether BLAS's threads can be set: OpenBLAS's and MKL's can, Apple Accelerate's cannot."""
    return len(_blas_libraries()) > 0


@functools.cache
def _blas_libraries() -> Any:
    """Return threadpoolctl's hold on NumPy's BLAS: milliseconds to find, microseconds to steer."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _begin_anew_in_a_child() -> None:
    """Forget, in a process that was forked off, the threads of its parent, none of which came along."""
    global _blas_lock  # noqa: PLW0603  another thread may have held it
    _blas_lock = threading.RLock()
    _claims.clear()
    _helpers.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew_in_a_child)
