"""A second oracle: what torch's autograd makes of the same operation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from numpy_gpt.arrays import Array
from numpy_gpt.extras import install_command
from numpy_gpt.verify.gradcheck.finite_differences import Differences
from numpy_gpt.verify.gradcheck.measurement import RELATIVE_TOLERANCE
from numpy_gpt.verify.gradcheck.operation import Function
from numpy_gpt.verify.gradcheck.probing import PATIENCE, Plan, Prober
from numpy_gpt.verify.gradcheck.report import Finding, Property, TensorReport
from numpy_gpt.verify.gradcheck.subject import Subject, disagreement

DOUBTS = 16
"""How many elements that torch disputes are measured one by one."""


def require_torch() -> Any:
    """Import torch.

    Raises:
        ImportError: with the command that installs it.
    """
    try:
        import torch
    except ImportError as missing:
        raise ImportError(f"this check needs torch: {install_command('torch')}") from missing
    return torch


def with_torch(
    differences: Differences, torch_forward: Function, tensors: Mapping[str, TensorReport]
) -> tuple[dict[str, TensorReport], list[Finding]]:
    """Revise the verdicts by what torch says, in float64.

    Torch looks at every element, where differences may have sampled. An element it disputes is measured by
    itself: at a kink both may be right. What differences could not vouch for, torch's agreement does.

    Returns:
        The tensors, and a finding if torch's output is another.

    Raises:
        ImportError: when torch is not installed.
        ValueError: when torch_forward cannot be used.
    """
    subject = differences.subject
    values, gradients = _torch_answers(subject, torch_forward)
    gap = disagreement(values, subject.values, size=0.0)
    if not gap <= RELATIVE_TOLERANCE:
        return dict(tensors), [
            Finding(Property.TORCH, f"differs from torch_forward's by {gap:.1e}", "output")
        ]
    return {
        subject.names[i]: _revised(differences, i, gradients[i], tensors[subject.names[i]])
        for i in subject.tensors
    }, []


def _revised(differences: Differences, i: int, wanted: Array, tensor: TensorReport) -> TensorReport:
    subject = differences.subject
    plan = Plan.within(2 * DOUBTS, subject.inputs[i].shape)
    prober = Prober(differences, i, plan, time.process_time() + PATIENCE)
    size = np.max(
        np.abs(wanted), axis=tuple(range(1, wanted.ndim)), initial=subject.sizes[i] * 1e-3, keepdims=True
    )
    errors = np.max(np.abs(prober.claims - wanted) / size, axis=0)  # like the input
    order = np.argsort(np.where(np.isnan(errors), -np.inf, -errors), axis=None)[:DOUBTS]
    disputed = [int(flat) for flat in order if not errors.flat[flat] <= RELATIVE_TOLERANCE]
    if not disputed:
        stuck = tensor.verdict == "inconclusive" and not differences.is_single_precision
        return replace(tensor, verdict="passed", reason=f"torch agrees; {tensor.reason}") if stuck else tensor
    if tensor.verdict == "failed":
        return tensor
    prober.probe_elements(disputed)
    if all(probe.slope.at_kink for probe in prober.elements.values()):
        return replace(tensor, reason="at a kink torch takes another slope, as right as this one")
    worst = disputed[0]
    place = tuple(int(at) for at in np.unravel_index(worst, tensor.shape))
    k = int(np.argmax(np.abs(prober.claims - wanted)[(slice(None), *place)]))
    return replace(
        tensor,
        verdict="failed",
        error=float(errors.flat[worst]),
        index=place,
        claimed=float(prober.claims[(k, *place)]),
        measured=float(wanted[(k, *place)]),
        reason="torch's gradient is another",
    )


def _torch_answers(subject: Subject, torch_forward: Function) -> tuple[Array, dict[int, Array]]:
    """Return torch's outputs (M,) and, per input with a gradient, its gradients (K, ...)."""
    torch = require_torch()
    arguments = [torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for v in subject.inputs]
    leaves = {i: arguments[i].requires_grad_() for i in subject.tensors}
    try:
        result = torch_forward(*arguments)
    except Exception as cause:
        raise ValueError(f"torch_forward raised {type(cause).__name__}: {cause}") from cause
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    shapes = [tuple(getattr(output, "shape", ())) for output in outputs]
    wanted = [np.shape(output) for output in subject.run.outputs]
    if shapes != wanted or not all(isinstance(output, torch.Tensor) for output in outputs):
        raise ValueError(
            f"torch_forward must return the output alone, as tensors of shapes {wanted}, not {shapes}"
        )
    gradients: dict[int, list[Array]] = {i: [] for i in leaves}
    for upstream in subject.upstreams:
        sizes = [math.prod(shape) for shape in shapes]
        pieces = [
            torch.from_numpy(piece).reshape(shape).to(output.dtype)
            for piece, shape, output in zip(
                np.split(upstream, np.cumsum(sizes)[:-1]), shapes, outputs, strict=True
            )
        ]
        graph = [
            (output, piece) for output, piece in zip(outputs, pieces, strict=True) if output.requires_grad
        ]
        answers = _torch_gradients(torch, graph, list(leaves.values()))
        for i, answer in zip(leaves, answers, strict=True):
            zero = np.zeros(subject.inputs[i].shape)
            gradients[i].append(zero if answer is None else answer.detach().numpy().astype(np.float64))
    values = np.concatenate([output.detach().numpy().astype(np.float64).ravel() for output in outputs])
    return values, {i: np.stack(rows) for i, rows in gradients.items()}


def _torch_gradients(torch: Any, graph: list[tuple[Any, Any]], leaves: list[Any]) -> tuple[Any, ...]:
    if not graph:
        return (None,) * len(leaves)
    outputs, upstreams = zip(*graph, strict=True)
    answers: tuple[Any, ...] = torch.autograd.grad(
        outputs, leaves, upstreams, retain_graph=True, allow_unused=True
    )
    return answers
