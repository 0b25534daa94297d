"""The model in PyTorch, leaves first: attention, feed-forward, block, embedding, GPT.

Shape letters as in numpy_gpt: B batch, T tokens, C embedding_dim, H num_heads, D head_dim, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  the name everyone gives it

from numpy_gpt.config import GPTConfig


class CausalAttention(nn.Module):
    """Multi-head self-attention in which no token sees a later one.

    Args:
        config: sizes.
        attention: "explicit" spells out scores, mask and softmax; "fused" leaves them to
            `scaled_dot_product_attention`.
    """

    def __init__(self, config: GPTConfig, attention: str) -> None:
        super().__init__()
        C = config.embedding_dim
        self.num_heads = config.num_heads
        self.fused = attention == "fused"
        self.W_query = nn.Linear(C, C, bias=config.qkv_bias)
        self.W_key = nn.Linear(C, C, bias=config.qkv_bias)
        self.W_value = nn.Linear(C, C, bias=config.qkv_bias)
        self.out_proj = nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        """Return context (B, T, C) for token vectors x (B, T, C)."""
        queries = self.split_heads(self.W_query(x))  # (B, H, T, D)
        keys = self.split_heads(self.W_key(x))  # (B, H, T, D)
        values = self.split_heads(self.W_value(x))  # (B, H, T, D)
        if self.fused:
            context = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            T, D = queries.shape[-2:]
            scores = queries @ keys.transpose(-2, -1)  # (B, H, T, T)
            mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(diagonal=1)  # (T, T)
            scores = scores.masked_fill(mask, -math.inf)
            context = torch.softmax(scores / D**0.5, dim=-1) @ values  # (B, H, T, D)
        out: Tensor = self.out_proj(context.transpose(1, 2).flatten(2))  # (B, T, C)
        return out

    def split_heads(self, x: Tensor) -> Tensor:
        """Return (B, T, C) as (B, H, T, D)."""
        B, T, C = x.shape
        return x.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between, four times as wide inside."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C = config.embedding_dim
        self.gelu = nn.GELU(approximate="tanh" if config.activation == "gelu_tanh" else "none")
        self.up_proj = nn.Linear(C, 4 * C)
        self.down_proj = nn.Linear(4 * C, C)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, C) for token vectors x (B, T, C)."""
        out: Tensor = self.down_proj(self.gelu(self.up_proj(x)))
        return out


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each on normalised input and added to the residual stream."""

    def __init__(self, config: GPTConfig, attention: str) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.embedding_dim, eps=config.layer_norm_eps)
        self.attention = CausalAttention(config, attention)
        self.feed_forward_norm = nn.LayerNorm(config.embedding_dim, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, T, C) with both branches added."""
        x = x + self.attention(self.attention_norm(x))
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x


class Embedding(nn.Module):
    """Token vectors plus position vectors."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.max_sequence_length = config.max_sequence_length
        self.token_embedding = nn.Embedding(config.vocabulary_size, config.embedding_dim)
        self.position_embedding = nn.Embedding(config.max_sequence_length, config.embedding_dim)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return x (B, T, C) for token_ids (B, T).

        Raises:
            ValueError: for ids that are not 2-D, or more of them than there are positions.
        """
        if token_ids.ndim != 2:
            raise ValueError("token_ids must have shape (batch_size, sequence_length)")
        T = token_ids.size(1)
        if T > self.max_sequence_length:
            raise ValueError(f"input has {T} tokens, but the maximum is {self.max_sequence_length}")
        positions = torch.arange(T, device=token_ids.device)  # (T,)
        x: Tensor = self.token_embedding(token_ids) + self.position_embedding(positions)  # (B, T, C)
        return x


class GPT(nn.Module):
    """The twin of `numpy_gpt.GPT`: same computation, same state-dict names, same initial distribution.

    Args:
        config: sizes and choices, shared with numpy_gpt.
        attention: "explicit", or "fused" for `scaled_dot_product_attention`.

    Raises:
        ValueError: for another kind of attention.
    """

    def __init__(self, config: GPTConfig, *, attention: str = "explicit") -> None:
        super().__init__()
        if attention not in ("explicit", "fused"):
            raise ValueError(f'attention must be "explicit" or "fused", not {attention!r}')
        C = config.embedding_dim
        self.config = config
        self.embedding = Embedding(config)
        self.transformer_blocks = nn.ModuleList(
            TransformerBlock(config, attention) for _ in range(config.num_layers)
        )
        self.final_norm = nn.LayerNorm(C, eps=config.layer_norm_eps)
        self.vocabulary_projection = nn.Linear(C, config.vocabulary_size, bias=False)
        if config.tie_weights:
            self.vocabulary_projection.weight = self.embedding.token_embedding.weight
        self.initialize()

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return logits (B, T, V), a next-token prediction at every position of token_ids (B, T).

        Raises:
            ValueError: for ids of a wrong shape, no sequences, no tokens, or too many tokens.
        """
        if token_ids.ndim != 2:
            raise ValueError("token_ids must have shape (batch_size, sequence_length)")
        if token_ids.size(0) == 0:
            raise ValueError("batch_size must be at least 1, but token_ids holds no sequences")
        if token_ids.size(1) == 0:
            raise ValueError("each sequence must contain at least one token")
        x = self.embedding(token_ids)  # (B, T, C)
        for block in self.transformer_blocks:
            x = block(x)  # (B, T, C)
        x = self.final_norm(x)  # (B, T, C)
        logits: Tensor = self.vocabulary_projection(x)  # (B, T, V)
        return logits

    @torch.no_grad()
    def initialize(self) -> None:
        """Draw fresh weights: N(0, 0.02), residual outputs scaled by 1/√(2L), zero biases, unit norms."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                into_residual = name.endswith(("out_proj.weight", "down_proj.weight"))
                nn.init.normal_(
                    parameter, std=0.02 / (2 * self.config.num_layers) ** 0.5 if into_residual else 0.02
                )
            else:
                nn.init.constant_(parameter, 0 if name.endswith("bias") else 1)
