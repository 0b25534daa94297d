"""A `tiktoken.Encoding` as the files that Hugging Face keeps beside GPT-2's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy_gpt.interop.byte_level import last_merge, to_text
from numpy_gpt.interop.splitting import pre_tokenizer_of
from numpy_gpt.text.tokenizers import END_OF_TEXT

if TYPE_CHECKING:
    import tiktoken

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


def tokenizer_files(tokenizer: tiktoken.Encoding, max_sequence_length: int) -> dict[str, dict[str, Any]]:
    """Return the JSON files, by name, from which Hugging Face's AutoTokenizer builds the same tokenizer.

    Its GPT2TokenizerFast does too for GPT-2's pattern; since version 5 it ignores every other.

    Raises:
        ValueError: for a tokenizer that they cannot describe.
    """
    ranks, special_ids = tokenizer._mergeable_ranks, tokenizer._special_tokens
    in_order = sorted(ranks, key=ranks.__getitem__)
    vocabulary = {to_text(token): ranks[token] for token in in_order}
    if both := sorted(vocabulary.keys() & special_ids.keys()):
        raise ValueError(f"tokenizer {tokenizer.name!r} has {both[0]!r:.40} as text and as a special token")
    pairs = [last_merge(token, ranks) for token in in_order if len(token) > 1]
    end_of_text = END_OF_TEXT if END_OF_TEXT in special_ids else None
    return {
        TOKENIZER: {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": special_ids[token],
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for token in sorted(special_ids, key=special_ids.__getitem__)
            ],
            "normalizer": None,
            "pre_tokenizer": pre_tokenizer_of(tokenizer._pat_str),
            "post_processor": None,
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": True,  # tiktoken, too, looks for the whole piece first
                "vocab": vocabulary | special_ids,
                "merges": [f"{to_text(pair[0])} {to_text(pair[1])}" for pair in pairs if pair],
            },
        },
        TOKENIZER_CONFIG: {
            "tokenizer_class": "PreTrainedTokenizerFast",  # the one that takes tokenizer.json as it is
            "bos_token": end_of_text,
            "eos_token": end_of_text,
            "model_max_length": max_sequence_length,
            "clean_up_tokenization_spaces": False,
        },
    }
