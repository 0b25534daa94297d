"""Proof that hand-written backward passes are right, ours or yours.

from numpy_gpt.verify import check_backward, check_autograd_function
"""

from numpy_gpt.verify.gradcheck import (
    AxisProfile,
    Finding,
    Property,
    Report,
    TensorReport,
    check_autograd_function,
    check_backward,
)
from numpy_gpt.verify.kinds import Kind

__all__ = [
    "AxisProfile",
    "Finding",
    "Kind",
    "Property",
    "Report",
    "TensorReport",
    "check_autograd_function",
    "check_backward",
]
