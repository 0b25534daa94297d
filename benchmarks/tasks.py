"""What a fresh process can be asked to do; each function returns JSON values.

Every task takes `threads`. A contestant's library is loaded only by the tasks that run it, so that a peak of
memory is its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from benchmarks.cases import Case
from benchmarks.checking import NOISE_LIMIT, Check, check_training
from benchmarks.decoding import DECODERS, worst_disagreement
from benchmarks.memory import MemoryMeter
from benchmarks.operations import all_operands, op_call, worst_op_error
from benchmarks.opponents import contestant
from benchmarks.opponents.ours import table
from benchmarks.opponents.training import Setup
from benchmarks.products import MAKERS, peak_flops, products_seconds
from benchmarks.timing import median_seconds
from numpy_gpt.ops import Ops

Found = dict[str, Any]

PRODUCTS_SHARE = 0.04
"""Of the time for the steps, how much each shape of product gets: with two dozen shapes as much together."""

OPS_SHARE = 0.1
"""Of that time, how much each operation gets, forward and backward."""


def check(*, threads: int, case: Mapping[str, Any], name: str) -> Found:
    """Return a contestant's worst error against torch, and how much is allowed; see `Check`."""
    return check_training(Case.from_json(case), contestant(name).build, threads)._asdict()


def step(
    *, threads: int, case: Mapping[str, Any], name: str, phase: str, seconds: float, products: bool
) -> Found:
    """Time a contestant's training steps, then its library's matrix products alone.

    Args:
        threads: for everything.
        case: what to train.
        name: the contestant's.
        phase: "step", or "forward-backward" for a step without clipping and optimizer.
        seconds: how long to time steps.
        products: whether to time the products.

    Returns:
        seconds, the median of the steps; peak_bytes and growth_bytes, of the steps and not of building the
        model, see `Memory`; products_seconds. What the system does not tell, and products of a library that
        is not timed alone, are None.
    """
    measured, chosen = Case.from_json(case), contestant(name)
    training = chosen.build(Setup(measured.config, measured.batch(), threads))
    run = training.step if phase == "step" else training.forward_backward
    meter = MemoryMeter()
    found: Found = {"seconds": median_seconds(run, seconds=seconds), **meter.measure()._asdict()}
    del training, run
    found["products_seconds"] = None
    if products and chosen.library in MAKERS:
        share = seconds * PRODUCTS_SHARE
        found["products_seconds"] = products_seconds(chosen.library, measured, threads, seconds=share)
    return found


def check_ops(*, threads: int, case: Mapping[str, Any], name: str) -> Found:
    """Return one of our tables' worst error against torch over all operations; see `Check`."""
    return Check(worst_op_error(Case.from_json(case), _table(name), threads), NOISE_LIMIT)._asdict()


def ops(*, threads: int, case: Mapping[str, Any], name: str, seconds: float) -> Found:
    """Return the seconds of every operation, such as `gelu backward`, on a case's shapes.

    `name` is that of one of our tables, as a contestant, or torch.
    """
    share = seconds * OPS_SHARE
    found = {}
    for operation, operands in all_operands(Case.from_json(case)):
        ops = None if name == "torch" else _table(name)
        with op_call(ops, operation, operands, threads) as call:
            call.forward()
            found[f"{operation} forward"] = median_seconds(call.forward, seconds=share)
            found[f"{operation} backward"] = median_seconds(call.backward, seconds=share)
    return found


def check_decode(*, threads: int, case: Mapping[str, Any], name: str, new_tokens: int) -> Found:
    """Return by how much Hugging Face's model disagrees with what a contestant generates; see `Check`."""
    worst = worst_disagreement(Case.from_json(case), name, new_tokens, threads)
    return Check(worst, NOISE_LIMIT)._asdict()


def decode(*, threads: int, case: Mapping[str, Any], name: str, new_tokens: int, seconds: float) -> Found:
    """Time a continuation of the case's first sequence by so many tokens; returns as `step`, per token."""
    measured = Case.from_json(case)
    generate = DECODERS[name](measured.config, threads)
    prompt = measured.batch().token_ids[0]
    meter = MemoryMeter()
    whole = median_seconds(lambda: generate(prompt, new_tokens), seconds=seconds)
    return {"seconds": whole / new_tokens, **meter.measure()._asdict()}


def peak(*, threads: int, library: str, seconds: float) -> Found:
    """Return flops_per_second, the most that a library's large matrix products reach in float32."""
    return {"flops_per_second": peak_flops(library, threads, seconds=seconds)}


def describe_numpy(*, threads: int) -> Found:
    """Return which BLAS NumPy uses, with which kernels and how many threads."""
    import numpy as np
    import threadpoolctl

    for pool in threadpoolctl.threadpool_info():
        if pool["user_api"] == "blas":
            return {
                "blas": f"{pool['internal_api']} {pool['version']}",
                "kernel": pool.get("architecture"),
                "threads": pool["num_threads"],
            }
    # threadpoolctl knows nothing of Accelerate, whose threads nobody can steer.
    built_with = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "blas": f"{built_with['name']} {built_with.get('version', '')}".strip(),
        "kernel": None,
        "threads": None,
    }


def describe_torch(*, threads: int) -> Found:
    """Return which BLAS torch uses and which instructions, and all that it says about its build."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    shown = torch.__config__.show()
    lines = [line.strip(" -") for line in shown.splitlines()]
    built_with = next((part for part in shown.replace(",", " ").split() if part.startswith("BLAS_INFO=")), "")
    version = next((line for line in lines if "Math Kernel Library" in line), "")
    capability = next((line for line in lines if line.startswith("CPU capability usage")), "")
    return {
        "blas": f"{built_with.removeprefix('BLAS_INFO=') or 'unknown'} {_version_in(version)}".strip(),
        "kernel": capability.partition(": ")[2] or None,
        "threads": torch.get_num_threads(),
        "build": shown,
    }


def _table(name: str) -> Ops:
    return table(contestant(name).options["ops"])


def _version_in(line: str) -> str:
    """Return the number in such as `Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build ...`."""
    return line.partition("Version ")[2].partition("-")[0].partition(" ")[0]
