"""Gradient checks for hand-written backward passes, ours or yours."""

from numpy_gpt.verify.gradcheck.autograd_function import check_autograd_function
from numpy_gpt.verify.gradcheck.check import check_backward
from numpy_gpt.verify.gradcheck.report import AxisProfile, Finding, Property, Report, TensorReport

__all__ = [
    "AxisProfile",
    "Finding",
    "Property",
    "Report",
    "TensorReport",
    "check_autograd_function",
    "check_backward",
]
