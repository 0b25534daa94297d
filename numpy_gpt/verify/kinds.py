"""The kinds of mistake that a wrong gradient can be traced to."""

from __future__ import annotations

import enum


class Kind(enum.StrEnum):
    """What is probably wrong with a backward pass; a finding of the diagnosis has one of these."""

    CONSTANT_FACTOR = "constant_factor"  # right but for one number: 1/√D, B, T, 2, -1, ...
    MISSING_FACTOR = "missing_factor"  # a factor of the chain rule left out, such as a slope or a scale
    TRANSPOSED = "transposed"  # the transpose of the truth
    PERMUTED_AXES = "permuted_axes"  # axes swapped, or a reshape where a transpose belongs
    MISSING_REDUCTION = "missing_reduction"  # not summed over an axis that forward broadcast
    REPEATED_INDICES = "repeated_indices"  # each index counted once, however often it was used
    MISSING_PATH = "missing_path"  # one of several uses of a value sends nothing back
    SOFTMAX_ROW_TERM = "softmax_row_term"  # y * d_y without the sum over the row
    LAYER_NORM_MEAN_TERM = "layer_norm_mean_term"  # the mean of d_n not taken away
    LAYER_NORM_PROJECTION_TERM = "layer_norm_projection_term"  # n * mean(d_n * n) not taken away
    LAYER_NORM_WEIGHT = "layer_norm_weight"  # d_y where d_y * weight belongs
    GELU_FORM = "gelu_form"  # the slope of tanh's form behind erf's forward, or the reverse
    MASK = "mask"  # absent, shifted, or applied after the softmax
    STALE_ACCUMULATION = "stale_accumulation"  # what an earlier call left is still in the sum
    PARTIAL = "partial"  # only some rows, or the last tile, are wrong
