"""Every property, in the order of the matrix's columns."""

from __future__ import annotations

from numpy_gpt.verify.kill_matrix import conduct, data, generation, numbers, symmetries, training
from numpy_gpt.verify.kill_matrix.property import Property

PROPERTIES: tuple[Property, ...] = (
    numbers.op_values,
    numbers.op_gradients,
    numbers.backward_is_linear,
    numbers.model_values,
    numbers.model_gradients,
    numbers.one_gradient_two_ways,
    conduct.float32_stays_float32,
    conduct.inputs_are_untouched,
    conduct.results_belong_to_the_caller,
    conduct.equal_calls_give_equal_bits,
    conduct.out_is_overwritten,
    conduct.bad_ids_are_refused,
    symmetries.causality,
    symmetries.batch_isolation,
    symmetries.batch_permutation,
    symmetries.softmax_ignores_a_shift,
    symmetries.tied_weight_law,
    training.accumulation_law,
    training.optimizer_steps,
    training.clipping_keeps_direction,
    training.schedule_has_no_off_by_one,
    training.resume_is_exact,
    data.windows_are_aligned,
    data.every_window_is_drawn,
    data.batches_are_pure,
    data.every_token_is_scored_once,
    data.evaluation_is_the_mean_over_tokens,
    generation.cache_equals_recomputation,
    generation.sampler_filters,
    generation.generation_is_recomputation,
    generation.generation_follows_its_seed,
    generation.generation_ends,
)
