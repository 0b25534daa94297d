"""Pre-training: AdamW, schedule, clipping, evaluation, checkpoints, and the loop that joins them."""

from numpy_gpt.training.adamw import AdamW
from numpy_gpt.training.clipping import clip_gradients
from numpy_gpt.training.schedule import learning_rate_at

__all__ = ["AdamW", "clip_gradients", "learning_rate_at"]
