"""Properties of symmetry: what may change in the input, or in the weights, without changing the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from numpy_gpt.parameters import TOKEN_EMBEDDING, VOCABULARY_PROJECTION, Parameters
from numpy_gpt.verify.bugs.subject import Subject
from numpy_gpt.verify.kill_matrix.cases import model_cases, op_cases
from numpy_gpt.verify.kill_matrix.comparison import FLOAT64_ROUNDING, difference, other_bits
from numpy_gpt.verify.kill_matrix.property import looks_at
from numpy_gpt.verify.measure import largest

HUGE = 200.0
"""Scores of ± HUGE² overshadow any large finite number that somebody may use for minus infinity."""


@looks_at("ops", "model")
def causality(subject: Subject, seed: int) -> Iterator[str]:
    """Tokens after t cannot change anything at t or before, bit for bit, even when they score hugely."""
    for op_case in op_cases(seed):
        if op_case.name != "attention":
            continue
        given, changed = op_case.fresh(), op_case.fresh()
        given.arrays[0][...] = HUGE
        for arrays in (given.arrays, changed.arrays):
            arrays[0][...] = HUGE
            arrays[1][...] = -HUGE  # the visible keys score -HUGE² D, and the future ones more
        changed.arrays[1][:, -1] = HUGE
        changed.arrays[2][:, -1] += 1
        before, after = (case.forward(subject.ops)[0] for case in (given, changed))
        yield from other_bits("attention out before a changed key and value", after[:, :-1], before[:, :-1])
    for case in model_cases(seed):
        model = case.model(subject)
        t = case.token_ids.shape[1] // 2
        ids, _ = case.batch()
        ids[:, t:] = (ids[:, t:] + 1) % model.config.vocabulary_size
        before, after = model(case.token_ids), model(ids)
        yield from other_bits(f"logits before a changed token {t}", after[:, :t], before[:, :t])


@looks_at("ops", "model")
def batch_isolation(subject: Subject, seed: int) -> Iterator[str]:
    """No sequence of a batch can change anything in another, bit for bit."""
    for case in model_cases(seed):
        model = case.model(subject)
        ids, _ = case.batch()
        ids[1:] = (ids[1:] + 1) % model.config.vocabulary_size
        yield from other_bits("logits of the first sequence", model(ids)[0], model(case.token_ids)[0])


@looks_at("ops", "model")
def batch_permutation(subject: Subject, seed: int) -> Iterator[str]:
    """Sequences in another order give the same logits in that order, and the same loss and gradients."""
    for case in model_cases(seed):
        model = case.model(subject)
        ids, targets = case.batch()
        yield from difference("logits of the batch reversed", model(ids[::-1])[::-1], model(ids))
        loss, gradients = model.loss_and_gradients(ids, targets)
        loss_reversed, gradients_reversed = model.loss_and_gradients(ids[::-1], targets[::-1])
        yield from difference("loss of the batch reversed", loss_reversed, loss)
        yield from difference("gradients of the batch reversed", gradients_reversed.flat, gradients.flat)


@looks_at("ops", "model")
def softmax_ignores_a_shift(subject: Subject, seed: int) -> Iterator[str]:
    """One number added to all scores of a row changes nothing, so W_key.bias is without effect and gradient.

    exp(s + c) = exp(c) exp(s), and exp(c) cancels in the quotient. A bias c of the keys adds q·c to all
    scores of query q: one number per row. The loss does not depend on it, the derivative with respect to it
    is zero, and softmax's backward ensures that: the d_x of each row sum to zero.
    """
    for op_case in op_cases(seed):
        if op_case.name == "softmax":
            given, shifted = op_case.fresh(), op_case.fresh()
            shifted.arrays[0][...] += 3.0
            out, (d_x,) = given.run(subject.ops)
            yield from difference("softmax of shifted scores", shifted.forward(subject.ops)[0], out)
            yield from difference("sum of softmax d_x", d_x.sum(axis=-1), np.zeros(d_x.shape[:-1]), floor=1.0)
    for case in model_cases(seed):
        model = case.model(subject)
        if not model.config.qkv_bias:
            continue
        logits = model(case.token_ids)
        _, gradients = model.loss_and_gradients(*case.batch())
        for block, d_block in zip(
            model.parameters.transformer_blocks, gradients.transformer_blocks, strict=True
        ):
            bias, d_bias = block.attention.W_key.bias, d_block.attention.W_key.bias
            assert bias is not None  # as qkv_bias says
            yield from difference("d_W_key.bias", d_bias, np.zeros_like(bias), floor=largest(gradients))
            bias[...] += 1.0
        yield from difference("logits with another W_key.bias", model(case.token_ids), logits)


@looks_at("ops", "model")
def tied_weight_law(subject: Subject, seed: int) -> Iterator[str]:
    """A tied matrix has as its gradient the sum of the two that its uses have when they are untied."""
    for case in model_cases(seed):
        tied_config = dataclasses.replace(case.parameters.config, tie_weights=True)
        untied_config = dataclasses.replace(tied_config, tie_weights=False)
        state = case.parameters.state_dict()
        state[VOCABULARY_PROJECTION] = state[TOKEN_EMBEDDING]
        tied, untied = (Parameters.zeros(config, np.float64) for config in (tied_config, untied_config))
        for parameters in (tied, untied):
            parameters.load_state_dict(state)
        loss, gradients = subject.build(tied).loss_and_gradients(*case.batch())
        untied_loss, untied_gradients = subject.build(untied).loss_and_gradients(*case.batch())
        yield from difference("tied loss", loss, untied_loss)
        for name, gradient in gradients.named_parameters():
            expected = untied_gradients[name].copy()
            if name == TOKEN_EMBEDDING:
                expected += untied_gradients[VOCABULARY_PROJECTION]
            floor = largest(untied_gradients)
            yield from difference(
                f"tied d_{name}", gradient, expected, tolerance=FLOAT64_ROUNDING, floor=floor
            )
