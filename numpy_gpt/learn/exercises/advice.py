"""What a finding of the checker means, and where to look next; never the solution."""

from __future__ import annotations

from typing import NamedTuple

from numpy_gpt.verify import Kind, Property


class Advice(NamedTuple):
    """Two sentences without their full stops."""

    looks: str  # what the numbers look like
    next: str  # a next thing to look at


BY_KIND: dict[Kind, Advice] = {
    Kind.CONSTANT_FACTOR: Advice(
        "right but for one number, the same everywhere",
        "which sizes make that number, and which line of forward multiplies or divides by it; a mean where a "
        "sum belongs, the upstream gradient left out and a wrong sign look like this too",
    ),
    Kind.MISSING_FACTOR: Advice(
        "right but for a factor that differs from number to number",
        "which of forward's arrays multiplies or divides on the way to this value, and whether every line of "
        "yours that goes back past it does so too",
    ),
    Kind.TRANSPOSED: Advice(
        "the transpose of the right answer",
        "write the shape under each factor of the product: which axis must be summed away, and which stay, "
        "in which order",
    ),
    Kind.PERMUTED_AXES: Advice(
        "the right numbers in the wrong places",
        "a reshape only counts numbers off anew, a transpose moves them: which of forward's moves is not "
        "undone, or undone by the other of the two",
    ),
    Kind.MISSING_REDUCTION: Advice(
        "not summed over all that forward used this value for",
        "a gradient has the shape of its value: along which axes does forward repeat the value, and does "
        "every repetition count",
    ),
    Kind.REPEATED_INDICES: Advice(
        "counted once where an index occurs several times",
        "what NumPy does with `a[ids] += b` when an id repeats; try ids = [0, 0] by hand",
    ),
    Kind.MISSING_PATH: Advice(
        "one of several uses sends nothing back",
        "count how often forward uses this value, and how many parts your gradient has",
    ),
    Kind.SOFTMAX_ROW_TERM: Advice(
        "softmax without what comes through its shared sum",
        "every output of a row depends on every input of it: nudge one score of three and see what the "
        "others' shares do; the gradients of a row should sum to zero",
    ),
    Kind.LAYER_NORM_MEAN_TERM: Advice(
        "as if the mean were a constant",
        "the mean is made of x as well: what happens to the other channels when one of them is nudged; the "
        "d_x of a token should sum to zero",
    ),
    Kind.LAYER_NORM_PROJECTION_TERM: Advice(
        "as if the standard deviation were a constant",
        "inverse_std is made of x as well: what happens to all channels when one that is far out moves "
        "further; the sum of d_x times normalized should be zero for every token (but for eps)",
    ),
    Kind.LAYER_NORM_WEIGHT: Advice(
        "as if the weight were all ones",
        "which variable each of your lines is the gradient of: forward multiplies once more after it has "
        "normalized",
    ),
    Kind.GELU_FORM: Advice(
        "the slope of the other of the two forms",
        "which `approximate` your line is for, and whether backward asks for it",
    ),
    Kind.MASK: Advice(
        "something flows from or to the future",
        "where forward's mask stands, and what backward computes anew or lets through where it was",
    ),
    Kind.STALE_ACCUMULATION: Advice(
        "right the first time, and wrong when called again",
        "what is kept from one call to the next: which array is added to that was not made in this call",
    ),
    Kind.PARTIAL: Advice(
        "right in some places only",
        "what is special about the places where it is wrong: a position, an ignored target, a last row",
    ),
}
"""What each kind of mistake looks like to the one who made it."""

BY_PROPERTY: dict[Property, Advice] = {
    Property.RUNS: Advice("raises for another input of the same kind", "what your lines take for granted"),
    Property.SHAPE: Advice(
        "a gradient of another shape than its value", "which axes forward repeats the value along"
    ),
    Property.FINITE: Advice("not finite", "divisions, roots and logarithms: what can be zero"),
    Property.DTYPE: Advice(
        "float32 goes in and something else comes out",
        "constants: a NumPy scalar such as np.sqrt(2) makes float64 of a float32 array, and so does an array "
        "made without a dtype; math.sqrt(2) does not",
    ),
    Property.INPUTS_UNTOUCHED: Advice(
        "an input or the upstream gradient is changed",
        "`+=`, `*=` and assignments to a slice: is the array that they change your own",
    ),
    Property.ALIASING: Advice(
        "what is returned shares memory with what was given", "which array should be a new one"
    ),
    Property.RESULTS_KEPT: Advice(
        "a later call changes what an earlier one returned", "arrays that outlive a call: globals, saved ones"
    ),
    Property.REPEATABLE: Advice(
        "equal calls get different answers", "what is carried over from call to call, or drawn at random"
    ),
    Property.SAVED_REUSABLE: Advice(
        "right the first time, and wrong when called again with the same saved values",
        "what your lines change that is not their own: an array in saved, or one made outside",
    ),
    Property.LINEAR: Advice(
        "twice the upstream gradient does not give twice the answer",
        "every gradient is a sum of upstream gradients times numbers that forward fixed: is the upstream "
        "gradient in every term, and once",
    ),
    Property.LAYOUT: Advice(
        "the answer depends on how the array lies in memory",
        "ravel and reshape: do they give you a view or a copy, and which of the two do you write into",
    ),
    Property.TORCH: Advice("differs from torch", "which of the two is meant"),
}
"""What each broken property looks like."""
