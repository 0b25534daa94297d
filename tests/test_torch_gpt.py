"""The PyTorch twin: right by torch's own transformer layers, and convertible without loss."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import numpy_gpt as ng
import torch_gpt
from tests.comparison import FLOAT64_AGREEMENT, assert_close, assert_same_bits
from tests.models import (
    SEED_BATCH,
    TIED,
    Problem,
    configs,
    draw_weights,
    floors,
    parameter_shapes,
    problems,
    tensors,
    torch_answer,
)
from tests.strategies import DTYPES

ATTENTIONS = ["explicit", "fused"]


def logits_by_torchs_own_layers(config: ng.GPTConfig, state: dict[str, Tensor], token_ids: Tensor) -> Tensor:
    """Return logits (B, T, V) from nn.TransformerEncoderLayer, which is a pre-norm block when masked."""
    T = token_ids.shape[1]
    C, eps = config.embedding_dim, config.layer_norm_eps
    approximate = {"gelu_tanh": "tanh", "gelu": "none"}[config.activation]
    activation = functools.partial(nn.functional.gelu, approximate=approximate)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)

    x = (
        state["embedding.token_embedding.weight"][token_ids]
        + state["embedding.position_embedding.weight"][:T]
    )
    for i in range(config.num_layers):
        block = {
            name.removeprefix(f"transformer_blocks.{i}."): array
            for name, array in state.items()
            if name.startswith(f"transformer_blocks.{i}.")
        }
        projections = ("W_query", "W_key", "W_value")
        no_bias = torch.zeros(C, dtype=x.dtype)
        layer = nn.TransformerEncoderLayer(
            C, config.num_heads, 4 * C, 0.0, activation, eps, batch_first=True, norm_first=True, dtype=x.dtype
        )
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": torch.cat([block[f"attention.{p}.weight"] for p in projections]),
                "self_attn.in_proj_bias": torch.cat(
                    [block.get(f"attention.{p}.bias", no_bias) for p in projections]
                ),
                "self_attn.out_proj.weight": block["attention.out_proj.weight"],
                "self_attn.out_proj.bias": block["attention.out_proj.bias"],
                "linear1.weight": block["feed_forward.up_proj.weight"],
                "linear1.bias": block["feed_forward.up_proj.bias"],
                "linear2.weight": block["feed_forward.down_proj.weight"],
                "linear2.bias": block["feed_forward.down_proj.bias"],
                "norm1.weight": block["attention_norm.weight"],
                "norm1.bias": block["attention_norm.bias"],
                "norm2.weight": block["feed_forward_norm.weight"],
                "norm2.bias": block["feed_forward_norm.bias"],
            }
        )
        x = layer(x, src_mask=future)
    x = nn.functional.layer_norm(x, (C,), state["final_norm.weight"], state["final_norm.bias"], eps)
    return x @ state[TIED].T


@pytest.mark.parametrize("attention", ATTENTIONS)
@given(problem=problems())
def test_logits_equal_those_of_torchs_own_layers(problem: Problem, attention: str) -> None:
    model = torch_gpt.from_numpy(problem.model(), attention=attention)
    token_ids = torch.tensor(problem.token_ids)
    with torch.no_grad():
        expected = logits_by_torchs_own_layers(problem.config, model.state_dict(), token_ids)
        actual = model(token_ids)
    assert_close(actual.numpy(), expected.numpy(), f"{attention} logits", tolerance=FLOAT64_AGREEMENT)


@given(problem=problems())
def test_fused_attention_equals_explicit_attention(problem: Problem) -> None:
    explicit, fused = (torch_answer(problem, np.float64, attention=attention) for attention in ATTENTIONS)
    for what, expected in tensors(explicit).items():
        floor = floors(explicit)[what]
        assert_close(tensors(fused)[what], expected, what, tolerance=FLOAT64_AGREEMENT, floor=floor)


@given(config=configs())
def test_both_twins_name_their_parameters_alike(config: ng.GPTConfig) -> None:
    model, twin = ng.GPT(config), torch_gpt.GPT(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in twin.named_parameters()}
    assert list(shapes.items()) == list(parameter_shapes(config).items())
    assert twin.state_dict().keys() == model.state_dict().keys()


@given(config=configs(), dtype=DTYPES, seed=st.integers(0, 2**16), attention=st.sampled_from(ATTENTIONS))
def test_conversion_there_and_back_keeps_every_bit(
    config: ng.GPTConfig, dtype: type, seed: int, attention: str
) -> None:
    model = ng.GPT(config, dtype=dtype)
    model.load_state_dict({name: array.astype(dtype) for name, array in draw_weights(config, seed).items()})
    twin = torch_gpt.from_numpy(model, attention=attention)
    back = torch_gpt.to_numpy(twin)

    assert isinstance(twin, torch_gpt.GPT)
    assert isinstance(back, ng.GPT)
    assert back.config == config
    weights = twin.state_dict()
    for name, array in model.state_dict().items():
        assert_same_bits(weights[name].numpy(), array, f"torch {name}")
    assert_same_bits(back.parameters.flat, model.parameters.flat, "parameters")


@given(config=configs())
def test_converted_models_share_no_memory(config: ng.GPTConfig) -> None:
    model = ng.GPT(config)
    twin = torch_gpt.from_numpy(model)
    back = torch_gpt.to_numpy(twin)
    before = model.parameters.flat.copy()

    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.fill_(7.0)
    assert_same_bits(model.parameters.flat, before, "the model converted from")
    assert_same_bits(back.parameters.flat, before, "the model converted to")


def test_a_trained_twin_keeps_its_tied_matrix() -> None:
    config = ng.GPTConfig(5, 4, embedding_dim=4, num_heads=2, num_layers=1)
    twin = torch_gpt.from_numpy(ng.GPT(config))
    twin(torch.tensor([[0, 1, 2]])).square().sum().backward()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.sub_(0.1 * parameter.grad)
    state = torch_gpt.to_numpy(twin).state_dict()
    assert_same_bits(state[TIED], state["embedding.token_embedding.weight"], TIED)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_seed_batch_gives_logits_at_every_position(attention: str) -> None:
    config = ng.GPTConfig(50257, 5, embedding_dim=4, num_heads=2, num_layers=1)
    with torch.inference_mode():
        logits = torch_gpt.GPT(config, attention=attention)(torch.tensor(SEED_BATCH))
    assert logits.shape == (3, 5, 50257)
    assert logits[0, -1].shape == (50257,)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(
    ("token_ids", "text"),
    [
        ([1, 2], r"token_ids must have shape \(batch_size, sequence_length\)"),
        ([[], []], "each sequence must contain at least one token"),
        ([[0] * 6], "input has 6 tokens, but the maximum is 5"),
    ],
)
def test_the_twin_refuses_what_the_specification_refuses(
    attention: str, token_ids: list[object], text: str
) -> None:
    config = ng.GPTConfig(7, 5, embedding_dim=4, num_heads=2, num_layers=1)
    with pytest.raises(ValueError, match=text):
        torch_gpt.GPT(config, attention=attention)(torch.tensor(token_ids, dtype=torch.long))
