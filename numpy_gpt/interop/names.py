"""GPT-2's names for its tensors, beside ours.

Hugging Face and nanoGPT use one set of names, but for prefixes, and differ in how a block's matrices lie:

    Hugging Face    Conv1D       y = x @ weight + b     weight (in, out), our transpose
    nanoGPT         nn.Linear    y = x @ weightᵀ + b    weight (out, in), as ours

Both join queries, keys and values into one tensor, in that order along the output axis.
"""

from __future__ import annotations

import re
from dataclasses import replace

from numpy_gpt.config import GPTConfig
from numpy_gpt.parameters import TOKEN_EMBEDDING, VOCABULARY_PROJECTION, parameter_shapes

TOKENS = "wte.weight"  # (V, C)
POSITIONS = "wpe.weight"  # (max_sequence_length, C)
HEAD = "lm_head.weight"  # (V, C)
FIRST_QKV = "h.0.attn.c_attn.weight"  # (C, 3C), nanoGPT's (3C, C)

BLOCK_LAYERS = {
    "ln_1": ("attention_norm",),
    "attn.c_attn": ("attention.W_query", "attention.W_key", "attention.W_value"),
    "attn.c_proj": ("attention.out_proj",),
    "ln_2": ("feed_forward_norm",),
    "mlp.c_fc": ("feed_forward.up_proj",),
    "mlp.c_proj": ("feed_forward.down_proj",),
}
"""What one layer of theirs holds of ours, joined along the output axis."""

# torch.compile puts the first before all names, Hugging Face's model with a head the second before most.
_PREFIXES = re.compile(r"(_orig_mod\.)?(transformer\.)?")
# The causal mask, which older versions of both kept with the weights; attn.c_attn.bias is a real bias.
_MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


def bare_name(name: str) -> str:
    """Return a tensor's name without the prefixes that some files put before it."""
    return _PREFIXES.sub("", name, count=1)


def is_mask(name: str) -> bool:
    """Tell whether a bare name is that of a mask, which holds nothing learned."""
    return _MASK.fullmatch(name) is not None


def lies_transposed(name: str) -> bool:
    """Tell whether Hugging Face keeps this tensor as (in, out); of a vector it makes no difference."""
    return name.startswith("h.")


def gpt2_names(config: GPTConfig) -> dict[str, tuple[str, ...]]:
    """Return GPT-2's name of every tensor, and of which of our parameters it is made."""
    names: dict[str, tuple[str, ...]] = {
        TOKENS: (TOKEN_EMBEDDING,),
        POSITIONS: ("embedding.position_embedding.weight",),
    }
    for i in range(config.num_layers):
        for theirs, ours in BLOCK_LAYERS.items():
            for kind in ("weight", "bias"):
                parts = tuple(f"transformer_blocks.{i}.{layer}.{kind}" for layer in ours)
                names[f"h.{i}.{theirs}.{kind}"] = parts
    names |= {f"ln_f.{kind}": (f"final_norm.{kind}",) for kind in ("weight", "bias")}
    if not config.tie_weights:
        names[HEAD] = (VOCABULARY_PROJECTION,)
    return names


def gpt2_shapes(config: GPTConfig, *, transposed: bool) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of `gpt2_names`, in Hugging Face's layout where `transposed`."""
    shapes = parameter_shapes(replace(config, qkv_bias=True))  # GPT-2 has every bias
    found = {}
    for name, ours in gpt2_names(config).items():
        out, *rest = shapes[ours[0]]
        shape = (len(ours) * out, *rest)
        found[name] = shape[::-1] if transposed and lies_transposed(name) else shape
    return found
