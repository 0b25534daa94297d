"""What splits a text before its pieces are encoded: Hugging Face's pre_tokenizer and tiktoken's pattern."""

from __future__ import annotations

import re
from typing import Any

# Hugging Face splits with Oniguruma, tiktoken with Rust's regular expressions. Of what both know, {n,m}+,
# anchors, and escapes other than blanks, digits and \p{...} need not mean the same.
_AMBIGUOUS = re.compile(r"\}\+|\$|(?<!\[)\^|\\[a-ce-moqu-zA-CE-OQRT-Z0-9]")


def gpt2_pattern() -> str:
    """Return the pattern of tiktoken's gpt2, which comes with tiktoken and not over the network."""
    from tiktoken_ext.openai_public import r50k_pat_str  # type: ignore[import-untyped]  # it has no stubs

    pattern: str = r50k_pat_str
    return pattern


def pre_tokenizer_of(pattern: str) -> dict[str, Any]:
    """Return what in tokenizer.json splits as the pattern does and spells bytes in GPT-2's alphabet.

    Raises:
        ValueError: for a pattern that Hugging Face might understand in another way.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if pattern == gpt2_pattern():  # which Hugging Face has built in, and writes in another way
        return {**byte_level, "use_regex": True}
    _check_pattern(pattern)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {**byte_level, "use_regex": False}]}


def pattern_of(pre_tokenizer: Any) -> str:
    """Return the pattern of what `pre_tokenizer_of` writes, or of its equal from another hand.

    Raises:
        ValueError: for any other pre_tokenizer, and for a pattern that tiktoken might read in another way.
    """
    if not isinstance(pre_tokenizer, dict):
        raise ValueError("its pre_tokenizer is not byte-level")
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    *splits, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True) or len(splits) > 1:
        raise ValueError("its pre_tokenizer is not at most one Split and ByteLevel without a prefix space")
    if not splits and last.get("use_regex", True):
        return gpt2_pattern()
    if not splits or last.get("use_regex", True):
        raise ValueError("its pre_tokenizer splits text in no way or in two ways, not in one")
    (split,) = splits
    pattern = split.get("pattern", {}).get("Regex")
    as_expected = split.get("behavior") == "Isolated" and not split.get("invert")
    if split.get("type") != "Split" or not isinstance(pattern, str) or not as_expected:
        raise ValueError("its pre_tokenizer is not a Split that isolates what a Regex matches")
    _check_pattern(pattern)
    return pattern


def _check_pattern(pattern: str) -> None:
    if found := _AMBIGUOUS.search(pattern):
        raise ValueError(
            f"the tokenizer's pattern {pattern!r:.40} has {found[0]}, which Hugging Face and tiktoken "
            "understand in different ways"
        )
