"""PyTorch in one fixed state, independent of the settings of the rest of the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ONE_AT_A_TIME = threading.RLock()  # PyTorch's settings belong to the whole process


@contextmanager
def steady(torch: Any, threads: int) -> Iterator[None]:
    """Within the block: no gradients, deterministic algorithms, full float32, this many threads.

    The previous state is restored afterwards.
    """
    with _ONE_AT_A_TIME:
        before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(),
            torch.get_num_threads(),
        )
        try:
            torch.use_deterministic_algorithms(True)
            torch.set_float32_matmul_precision("highest")
            torch.set_num_threads(threads)
            with torch.inference_mode(), torch.autocast("cpu", enabled=False):
                yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            torch.set_float32_matmul_precision(before[2])
            torch.set_num_threads(before[3])
