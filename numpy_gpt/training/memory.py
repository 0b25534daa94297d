"""What a training run needs of memory, said before it starts, and what the machine has."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import numpy as np

from numpy_gpt.config import GPTConfig, TrainConfig
from numpy_gpt.kernels import fast
from numpy_gpt.kernels.linear_cross_entropy import KEPT_BYTES
from numpy_gpt.model import num_shards
from numpy_gpt.ops import Ops
from numpy_gpt.parallel import default_threads
from numpy_gpt.parameters import parameter_shapes

PROCESS_BYTES = 80 * 1024 * 1024
"""Python, NumPy, BLAS's own buffers and a tokenizer."""


def training_bytes(config: TrainConfig, shape: GPTConfig, table: Ops) -> int:
    """Return about how many bytes a training step takes at its peak.

        numbers = parameters + gradients + 2 moments + the threads' own gradients
                  + activations kept for backward + what one block's backward has in hand
                  + logits, or the kernels' kept exponentials of them

    Args:
        config: the run.
        shape: the model's, with the vocabulary that the tokenizer really has.
        table: what the model computes with; any but the kernels is taken to keep what the book keeps.
    """
    num_parameters = sum(math.prod(each) for each in parameter_shapes(shape).values())
    itemsize = np.dtype(config.dtype).itemsize
    threads = config.threads or default_threads()
    sequences = -(-config.batch_size // config.accumulate)
    C, H, T, V = shape.embedding_dim, shape.num_heads, shape.max_sequence_length, shape.vocabulary_size
    tuned = table == fast
    shards = num_shards(sequences, threads, num_parameters * itemsize) if tuned else 1
    gradient_sets = shards if config.accumulate == 1 else shards + 1

    # Two norms with their outputs 4C, qkv 3C, context C, and around the GELU 8C; the book keeps its gate and
    # input too, and the (T, T) attention weights of every head.
    kept = 16 * C + 2 * H if tuned else 20 * C + H * T
    blocks_kept = shape.num_layers * C + kept if config.recompute else shape.num_layers * kept
    in_hand = 16 * C if tuned else 16 * C + 4 * H * T
    logits = 4 * C if tuned else 4 * V
    exponentials_bytes = min(sequences * T * V * itemsize, shards * KEPT_BYTES) if tuned else 0
    numbers = (3 + gradient_sets) * num_parameters + sequences * T * (blocks_kept + in_hand + logits)
    return PROCESS_BYTES + exponentials_bytes + numbers * itemsize


def require_memory(needed: int) -> None:
    """Raise MemoryError, saying what helps, unless the machine has that many bytes free."""
    free = available_bytes()
    if needed > free:
        raise MemoryError(
            f"this run needs about {gigabytes(needed)} of memory, and {gigabytes(free)} are free: try a "
            "smaller --batch-size, the same in more parts with --accumulate, --recompute, or a smaller model"
        )


def available_bytes(root: Path = Path("/")) -> float:
    """Return how much memory this process may still take: the machine's, or its container's if that is less.

    What a container has used includes files that it read: those not looked at lately give way to whoever
    needs memory, and count as free. Infinity where the system does not tell.
    """
    free = math.inf
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if free == math.inf:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # not Linux: what is built in
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder, limit_file, usage_file, reclaimable in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        group = root / "sys/fs/cgroup" / folder
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            limit, used = (int((group / name).read_text()) for name in (limit_file, usage_file))
            free = min(free, limit - max(0, used - _statistic(group / "memory.stat", reclaimable)))
    return free


def _statistic(path: Path, name: str) -> int:
    """Return one line's number; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.removeprefix(f"{name} "))
    return 0


def gigabytes(num_bytes: float) -> str:
    """Return a number of bytes as people say it."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
