"""Whole models from NumPy to torch and back; nothing shares memory afterwards."""

from __future__ import annotations

import torch

import numpy_gpt
from torch_gpt.model import GPT


def from_numpy(model: numpy_gpt.GPT, *, attention: str = "explicit") -> GPT:
    """Return the torch twin of a NumPy model: same weights, same dtype, copied.

    Args:
        model: a `numpy_gpt.GPT`.
        attention: as for `torch_gpt.GPT`.
    """
    twin = GPT(model.config, attention=attention).to(getattr(torch, model.dtype.name))
    twin.load_state_dict({name: torch.from_numpy(array) for name, array in model.state_dict().items()})
    return twin


def to_numpy(torch_model: GPT) -> numpy_gpt.GPT:
    """Return the NumPy twin of a torch model: same weights, same dtype, copied.

    Args:
        torch_model: a `torch_gpt.GPT` in float32 or float64, on any device.

    Raises:
        ValueError: for another dtype.
    """
    dtype = torch_model.final_norm.weight.dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"numpy_gpt computes in float32 or float64, not {dtype}")
    parameters = numpy_gpt.Parameters.zeros(torch_model.config, str(dtype).removeprefix("torch."))
    state = {name: tensor.detach().cpu().numpy() for name, tensor in torch_model.state_dict().items()}
    parameters.load_state_dict(state)
    return numpy_gpt.GPT.from_parameters(parameters)
