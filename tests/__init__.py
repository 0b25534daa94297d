"""Tests that hold the NumPy GPT, its hand-written backward passes and its PyTorch twin together."""
