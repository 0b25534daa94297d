"""Threads: what they share is done once and whole, and BLAS gets back the threads it had."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpy_gpt as ng
from numpy_gpt import parallel
from numpy_gpt.kernels import fast
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


def test_an_error_is_raised_when_all_have_ended() -> None:
    ended = threading.Event()

    def fail() -> None:
        raise KeyError("first")

    def slow() -> None:
        time.sleep(0.05)
        ended.set()

    with pytest.raises(KeyError, match="first"):
        Team(2).run([fail, slow])
    assert ended.is_set()
    with pytest.raises(KeyError, match="first"):
        Team(2).run([slow, fail])


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
