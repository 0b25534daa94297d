"""Settings: the documented defaults and presets, and every wrong value named where it is given."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given

import numpy_gpt as ng
from numpy_gpt.config import PRESETS, TrainConfig
from tests.models import configs, parameter_shapes

TRAIN_SETTINGS = {
    *("text", "tokenizer", "vocabulary_size", "preset", "num_layers", "num_heads", "embedding_dim"),
    *("max_sequence_length", "activation", "batch_size", "steps", "learning_rate", "min_learning_rate"),
    *("warmup_steps", "beta1", "beta2", "weight_decay", "clip_norm", "eval_interval", "seed", "dtype"),
    *("threads", "ops", "out"),
}


def test_a_gpt_has_the_documented_defaults() -> None:
    config = ng.GPTConfig(7, 5, 4, 2, 1)
    assert dataclasses.astuple(config) == (7, 5, 4, 2, 1, True, True, "gelu_tanh", 1e-5)
    assert config.head_dim == 2


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ng.GPTConfig(7, 5, 4, 2, 1).num_heads = 4  # type: ignore[misc]  # what is being tested


@given(config=configs())
def test_a_config_survives_json(config: ng.GPTConfig) -> None:
    assert ng.GPTConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_whole_numbers_from_numpy_are_kept_as_ints() -> None:
    sizes = {
        "vocabulary_size": 7,
        "max_sequence_length": 5,
        "embedding_dim": 4,
        "num_heads": 2,
        "num_layers": 1,
    }
    config = ng.GPTConfig(**{name: np.int32(value) for name, value in sizes.items()})
    assert config == ng.GPTConfig(**sizes)
    assert all(type(getattr(config, name)) is int for name in sizes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocabulary_size", True),
        ("vocabulary_size", "7"),
        ("max_sequence_length", None),
        ("num_layers", 2.0),
        ("qkv_bias", 1),
        ("tie_weights", "yes"),
        ("activation", ["gelu"]),
        ("layer_norm_eps", math.inf),
        ("layer_norm_eps", -1e-5),
        ("layer_norm_eps", "small"),
        ("layer_norm_eps", True),
        ("layer_norm_eps", 10**400),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(ng.GPTConfig(7, 5, 4, 2, 1), **{field: value})


# As published: Radford et al. 2019 as the weights really are, tied and with 50,257 tokens.
@pytest.mark.parametrize(
    ("preset", "num_parameters"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_the_gpt2_presets_have_as_many_parameters_as_gpt2(preset: str, num_parameters: int) -> None:
    shapes = parameter_shapes(ng.GPTConfig.preset(preset))
    assert sum(math.prod(shape) for shape in shapes.values()) == num_parameters


def test_the_command_line_offers_every_preset_and_no_other() -> None:
    choices, none = get_args(get_type_hints(TrainConfig)["preset"])
    assert list(get_args(choices)) == list(PRESETS)
    assert none is type(None)


@pytest.mark.parametrize("preset", [None, 3, ["nano"], "", "Nano"])
def test_a_preset_of_another_kind_is_refused(preset: Any) -> None:
    with pytest.raises(ValueError, match="preset"):
        ng.GPTConfig.preset(preset)


def test_a_training_run_has_every_documented_setting_and_needs_none() -> None:
    assert {field.name for field in dataclasses.fields(TrainConfig)} >= TRAIN_SETTINGS
    TrainConfig()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (field, value)
            for field in ("batch_size", "steps", "eval_interval")
            for value in (0, -3, 1.5, "2")
        ),
        *((field, value) for field in ("warmup_steps", "seed") for value in (-1, 0.5, None)),
        *(("threads", value) for value in (0, -1, 2.0)),
        *(("learning_rate", value) for value in (0.0, -1e-3, math.nan, math.inf, "fast")),
        *(
            (field, value)
            for field in ("min_learning_rate", "weight_decay", "clip_norm")
            for value in (-1e-3, math.nan, math.inf, None)
        ),
        ("min_learning_rate", 1.0),  # above the peak
        *((field, value) for field in ("beta1", "beta2") for value in (1.0, -0.1, math.nan, "most", None)),
        ("tokenizer", "words"),
        ("vocabulary_size", 256),
        ("vocabulary_size", 300.0),
        ("dtype", "float16"),
        ("ops", "slow"),
        ("ops", ""),
        ("ops", 3),
        ("preset", "huge"),
        *((field, 0) for field in ("num_layers", "num_heads", "embedding_dim", "max_sequence_length")),
        ("num_heads", 3),  # no divisor of nano's 128
        ("activation", "relu"),
    ],
)
def test_a_wrong_training_setting_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        TrainConfig(**{field: value})


@pytest.mark.parametrize(("tokenizer", "size"), [("bytes", 257), ("gpt2", 50257)])
def test_only_bpe_chooses_its_vocabulary(tokenizer: Any, size: int) -> None:
    TrainConfig(tokenizer=tokenizer, vocabulary_size=size)
    assert TrainConfig(tokenizer=tokenizer).requested_vocabulary == size
    with pytest.raises(ValueError, match=f"vocabulary_size.*{size}"):
        TrainConfig(tokenizer=tokenizer, vocabulary_size=size + 1)


def test_bpe_learns_1024_tokens_unless_told() -> None:
    assert TrainConfig().requested_vocabulary == 1024
    assert TrainConfig(vocabulary_size=300).requested_vocabulary == 300


@pytest.mark.parametrize("preset", PRESETS)
def test_flags_change_the_preset_and_nothing_else(preset: Any) -> None:
    base = ng.GPTConfig.preset(preset)
    assert TrainConfig(preset=preset).model_config(321) == dataclasses.replace(base, vocabulary_size=321)
    changes: dict[str, Any] = {
        "num_layers": 3,
        "num_heads": 2,
        "embedding_dim": 6,
        "max_sequence_length": 9,
        "activation": "gelu",
    }
    for name, value in changes.items():
        if name not in ("num_heads", "embedding_dim"):
            changed = TrainConfig(preset=preset, **{name: value}).model_config(321)
            assert changed == dataclasses.replace(base, vocabulary_size=321, **{name: value})
    changed = TrainConfig(preset=preset, **changes).model_config(321)
    assert changed == dataclasses.replace(base, vocabulary_size=321, **changes)


def test_settings_with_numpys_numbers_are_plain_numbers() -> None:
    whole = {"steps": 3, "seed": 1, "warmup_steps": 0, "threads": 1, "num_layers": 2, "vocabulary_size": 300}
    plain = whole | {"learning_rate": 0.5, "min_learning_rate": 0.25, "beta1": 0.5, "clip_norm": 0.0}
    settings = {name: np.asarray(value)[()] for name, value in plain.items()}
    kept = dataclasses.asdict(TrainConfig(**settings))
    assert {name: type(kept[name]) for name in plain} == {name: type(value) for name, value in plain.items()}
