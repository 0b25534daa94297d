"""Threads: what they share is done once and whole, and BLAS gets back the threads it had."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt import parallel
from numpy_gpt.kernels import Workspace, empty, fast, workspace
from numpy_gpt.ops import Op
from numpy_gpt.parallel import Team, blas_threads, current_team, share, share_chunks


@given(count=st.integers(0, 50), threads=st.integers(1, 5), cost=st.sampled_from([0.01, 1.0, 100.0]))
def test_shares_cover_everything_once(count: int, threads: int, cost: float) -> None:
    done = np.zeros(count, int)

    def span(start: int, stop: int) -> None:
        done[start:stop] += 1

    with Team(threads, worth_a_thread=10).at_work():
        share(span, count, cost=cost)
    assert (done == 1).all()


@given(count=st.integers(0, 50), threads=st.integers(1, 5), item_bytes=st.integers(0, 40))
def test_chunks_cover_everything_once_and_begin_alike_on_any_team(
    count: int, threads: int, item_bytes: int
) -> None:
    def chunks_of(size: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        with Team(size, worth_a_thread=1, cache_bytes=8 * 64).at_work():
            share_chunks(lambda part: found.append((part.start, part.stop)), count, item_bytes)
        return sorted(found)

    found = chunks_of(threads)
    assert [i for chunk in found for i in range(*chunk)] == list(range(count))
    assert found == chunks_of(1)


def test_work_too_small_for_threads_stays_on_the_caller_s() -> None:
    seen: list[int] = []
    with Team(4, worth_a_thread=1000).at_work():
        share(lambda *_: seen.append(threading.get_ident()), 100, cost=1)
    assert seen == [threading.get_ident()]


def test_without_a_team_at_work_nothing_is_shared() -> None:
    assert current_team().size == 1
    with Team(3).at_work():
        assert current_team().size == 3
        with Team(2).at_work():
            assert current_team().size == 2
        assert current_team().size == 3
    assert current_team().size == 1


def test_an_error_is_raised_when_no_other_task_is_running() -> None:
    began, ended = threading.Event(), threading.Event()

    def fail() -> None:
        began.wait(0.05)
        raise KeyError("first")

    def slow() -> None:
        began.set()
        time.sleep(0.05)
        ended.set()

    with pytest.raises(KeyError, match="first"):
        Team(2).run([fail, slow])
    assert began.is_set() == ended.is_set()
    with pytest.raises(KeyError, match="first"):
        Team(2).run([slow, fail])


def test_the_first_of_several_errors_is_raised() -> None:
    def fail(which: int) -> None:
        raise KeyError(which)

    for _ in range(20):
        with pytest.raises(KeyError, match="1"):
            Team(4).run([int, *(functools.partial(fail, which) for which in (1, 2, 3))])


def test_an_error_keeps_nothing_alive_that_the_tasks_worked_on() -> None:
    class Large:
        pass

    def fail(large: Large) -> None:
        raise KeyError

    gc.collect()
    gc.disable()
    try:
        large = Large()
        with pytest.raises(KeyError):
            Team(2).run([functools.partial(fail, large)] * 2)
        remains = weakref.ref(large)
        del large
        assert remains() is None
    finally:
        gc.enable()


def test_the_caller_does_what_no_thread_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def submit(self, task: Any) -> None:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    class Idle:
        def submit(self, task: Any) -> None:
            pass

    for helpers in (Refusing(), Idle()):
        monkeypatch.setattr(parallel, "_helpers", lambda _, helpers=helpers: helpers)
        assert Team(3).run([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]


# ---- interrupts and forks ----------------------------------------------------------------------------------


class Interrupter:
    """Presses Ctrl-C once, at the given one of the moments when Python looks whether somebody did.

    These are the beginning of every function and the return from every function of C; here, those of the
    modules that have something to tidy, and of the context managers that they are made of.
    """

    MODULES = (parallel.__file__, workspace.__file__, contextlib.__file__, weakref.__file__)

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in self.MODULES:
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt


def test_an_interrupt_at_any_moment_leaves_no_thread_at_work_and_blas_as_it_was() -> None:
    before = parallel._blas_libraries().info()
    running: set[int] = set()

    def task(which: int) -> None:
        running.add(which)
        try:
            empty((3,), np.float32)
            time.sleep(0.001)
        finally:
            running.discard(which)

    def work() -> None:
        with blas_threads(3), Team(2, worth_a_thread=1).at_work(), Workspace().in_use():
            share(lambda start, _: task(start), 2, cost=1)

    work()
    for at in itertools.count():
        before_us = sys.getprofile()
        interrupter = Interrupter(at)
        sys.setprofile(interrupter)
        try:
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before_us)
        assert not running
        assert parallel._blas_libraries().info() == before
        assert current_team().size == 1
        assert empty((3,), np.float32).base is None
        if interrupter.left >= 0:
            break
    assert at > 60


def test_an_interrupt_that_comes_while_one_is_tidied_up_after_waits_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, ended = threading.Event(), threading.Event()
    call_off, presses = parallel._Errand.call_off, [KeyboardInterrupt, KeyboardInterrupt]

    def press_and_call_off(errand: Any) -> None:
        if presses:
            raise presses.pop()
        call_off(errand)

    def fail() -> None:
        assert began.wait(10)
        raise KeyError

    def slow() -> None:
        began.set()
        time.sleep(0.05)
        ended.set()

    monkeypatch.setattr(parallel._Errand, "call_off", press_and_call_off)
    with pytest.raises(KeyboardInterrupt):
        Team(2).run([fail, slow])
    assert ended.is_set()


FORKING = """
import os, sys, threading
import numpy as np
import numpy_gpt as ng
from numpy_gpt import parallel

model = ng.GPT(ng.GPTConfig(60, 32, 64, 4, 2), threads=2, ops=sys.argv[1])
ids = np.arange(256).reshape(8, 32) % 60
_, before = model.loss_and_gradients(ids, ids)
blas = parallel._blas_libraries().info()
held, forked = threading.Event(), threading.Event()

def hold():
    with parallel._blas_lock, parallel.blas_threads(1):
        held.set()
        forked.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
forked.set()
if child == 0:
    parallel.Team(2).run([threading.Barrier(2, timeout=30).wait] * 2)  # it has threads of its own
    _, after = model.loss_and_gradients(ids, ids)
    assert parallel._blas_libraries().info() == blas
    os._exit(0 if after.flat.tobytes() == before.flat.tobytes() else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
@pytest.mark.parametrize("ops", ["fast", "book"])
def test_a_forked_child_computes_on(ops: str) -> None:
    subprocess.run([sys.executable, "-c", FORKING, ops], check=True, timeout=60)


AT_THE_END = """
import atexit
import numpy as np
import numpy_gpt as ng

model = ng.GPT(ng.GPTConfig(60, 32, 64, 4, 2), threads=2)
ids = np.arange(256).reshape(8, 32) % 60
expected = model.loss_and_gradients(ids, ids)[0]
atexit.register(lambda: print(model.loss_and_gradients(ids, ids)[0] == expected))
"""


def test_a_model_computes_to_the_very_end_of_its_process() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", AT_THE_END], check=True, timeout=60, capture_output=True, text=True
    )
    assert (finished.stdout.strip(), finished.stderr) == ("True", "")


# ---- BLAS, and the machine ---------------------------------------------------------------------------------


@pytest.mark.skipif(not parallel.blas_is_steerable(), reason="NumPy's BLAS here has threads of its own mind")
def test_blas_threads_come_back_when_the_last_of_several_lets_go() -> None:
    before = parallel._blas_libraries().info()
    first, second = blas_threads(1), blas_threads(2)
    first.__enter__()
    second.__enter__()  # as from another thread: the contexts do not nest
    assert {pool["num_threads"] for pool in parallel._blas_libraries().info()} == {1}
    first.__exit__(None, None, None)
    assert {pool["num_threads"] for pool in parallel._blas_libraries().info()} == {2}
    second.__exit__(None, None, None)
    assert parallel._blas_libraries().info() == before


@pytest.mark.skipif(not parallel.blas_is_steerable(), reason="NumPy's BLAS here has threads of its own mind")
@pytest.mark.parametrize(("num_tokens", "team_size", "blas_size"), [(1, 1, 2), (64, 1, 2), (65, 2, 1)])
def test_few_tokens_leave_the_threads_to_blas(num_tokens: int, team_size: int, blas_size: int) -> None:
    model = ng.GPT(ng.GPTConfig(5, 80, embedding_dim=4, num_heads=1, num_layers=1), threads=2)
    seen: list[tuple[int, int]] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        seen.append((current_team().size, parallel._blas_libraries().info()[0]["num_threads"]))
        return fast.gelu.forward(*arguments, **options)

    model.ops = fast._replace(gelu=Op(spy, fast.gelu.backward))
    with blas_threads(2):  # as many as BLAS may have, on one core too
        model(np.zeros((1, num_tokens), int))
    assert seen == [(team_size, blas_size)]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "400000 100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_a_container_s_quota_is_read(files: dict[str, str], cores: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = parallel._quota_cores(tmp_path)
    assert found == cores if cores else found > 1_000_000


def test_two_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert parallel._physical_cores(tmp_path) == 2
    assert parallel._physical_cores(tmp_path / "absent") > 1_000_000
    assert parallel.default_threads() >= 1
