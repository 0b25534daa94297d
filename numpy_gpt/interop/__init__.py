"""Weights and tokenizers of other implementations: Hugging Face's GPT-2 both ways, and nanoGPT's inward."""

from numpy_gpt.interop.reading import load_pretrained
from numpy_gpt.interop.tokenizer_reading import load_pretrained_tokenizer
from numpy_gpt.interop.writing import export_pretrained

__all__ = ["export_pretrained", "load_pretrained", "load_pretrained_tokenizer"]
