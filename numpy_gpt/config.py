"""The shape of a GPT: one frozen dataclass, validated once."""

from __future__ import annotations

import dataclasses
import math
import operator

ACTIVATIONS = ("gelu_tanh", "gelu")


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The sizes and choices that determine a GPT's parameters and computation.

    Args:
        vocabulary_size: V, the number of token ids.
        max_sequence_length: the longest T that has a position embedding.
        embedding_dim: C, the width of a token vector; divisible by num_heads.
        num_heads: H, attention heads per block.
        num_layers: L, transformer blocks.
        qkv_bias: whether W_query, W_key and W_value have biases (GPT-2: yes).
        tie_weights: whether the vocabulary projection is the token embedding itself.
        activation: "gelu_tanh" (what GPT-2 uses) or "gelu" (exact).
        layer_norm_eps: added to the variance inside layer norm's square root.

    Raises:
        ValueError: naming the first field that makes no model.
    """

    vocabulary_size: int
    max_sequence_length: int
    embedding_dim: int
    num_heads: int
    num_layers: int
    qkv_bias: bool = True
    tie_weights: bool = True
    activation: str = "gelu_tanh"
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "max_sequence_length", "embedding_dim", "num_heads", "num_layers"):
            object.__setattr__(self, name, _positive_int(name, getattr(self, name)))
        if self.embedding_dim % self.num_heads != 0:
            raise ValueError(
                f"embedding_dim must be divisible by num_heads, but {self.embedding_dim} is not "
                f"a multiple of {self.num_heads}"
            )
        for name in ("qkv_bias", "tie_weights"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {self.activation!r}")
        object.__setattr__(self, "layer_norm_eps", _positive_float("layer_norm_eps", self.layer_norm_eps))

    @property
    def head_dim(self) -> int:
        """D = C // H, the width of one attention head."""
        return self.embedding_dim // self.num_heads

    @classmethod
    def preset(cls, name: str) -> GPTConfig:
        """Return a named configuration.

        Args:
            name: a key of `PRESETS`; the gpt2 sizes are those of Radford et al. 2019, table 2.

        Raises:
            ValueError: for a name that is not a preset.
        """
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, not {name!r}")
        return PRESETS[name]


def _positive_int(name: str, value: object) -> int:
    """Return `value` as an int of at least 1; NumPy's integers are welcome, booleans are not."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # whatever has no __index__ raises TypeError
    except TypeError:
        raise ValueError(f"{name} must be an integer, not {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return number


def _positive_float(name: str, value: object) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]  # whatever is no number raises
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, not {value!r}") from None
    if not (0 < number < math.inf):
        raise ValueError(f"{name} must be positive and finite, not {value!r}")
    return number


PRESETS = {
    "nano": GPTConfig(257, 64, embedding_dim=128, num_heads=4, num_layers=4),
    "small": GPTConfig(4096, 256, embedding_dim=384, num_heads=6, num_layers=6),
    "gpt2": GPTConfig(50257, 1024, embedding_dim=768, num_heads=12, num_layers=12),
    "gpt2-medium": GPTConfig(50257, 1024, embedding_dim=1024, num_heads=16, num_layers=24),
    "gpt2-large": GPTConfig(50257, 1024, embedding_dim=1280, num_heads=20, num_layers=36),
    "gpt2-xl": GPTConfig(50257, 1024, embedding_dim=1600, num_heads=25, num_layers=48),
}
"""Every preset by name; nano and small are byte-level and word-piece models that a laptop trains."""
