"""Hugging Face's GPT-2 and its cached `generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from numpy_gpt import GPTConfig
from numpy_gpt.arrays import Array
from numpy_gpt.interop.settings import settings_from_config


class HuggingFaceModel:
    """A GPT-2 that continues texts.

    Args:
        config: ours; the weights are random.
        threads: torch's.
        folder: where to read weights instead, as `numpy_gpt.interop.export_pretrained` wrote them.
    """

    def __init__(self, config: GPTConfig, threads: int, folder: Path | None = None) -> None:
        torch.set_num_threads(threads)
        self.model: Any
        if folder is None:
            self.model = GPT2LMHeadModel(GPT2Config(**settings_from_config(config, "float32", None)))
        else:
            self.model = GPT2LMHeadModel.from_pretrained(folder)
        self.model.eval()

    def __call__(self, prompt: Array, new_tokens: int) -> list[int]:
        """Return the tokens that follow a prompt (T,), always the likeliest."""
        ids = torch.from_numpy(prompt)[None]
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )
        found: list[int] = out[0, len(prompt) :].tolist()
        return found

    def logits(self, token_ids: Array) -> Array:
        """Return logits (T, V) of what follows each token of a text (T,), computed at once."""
        with torch.no_grad():
            logits: Array = self.model(torch.from_numpy(token_ids)[None]).logits[0].numpy()
        return logits
