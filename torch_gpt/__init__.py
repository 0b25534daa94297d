"""The same GPT as `numpy_gpt`, in PyTorch: one module to read, and conversions of whole models both ways."""

from torch_gpt.conversion import from_numpy, to_numpy
from torch_gpt.model import GPT

__all__ = ["GPT", "from_numpy", "to_numpy"]
