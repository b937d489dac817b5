"""ZeroGPU Spaces: a GPU that is there only inside decorated calls. Everywhere else this changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

ZERO = bool(os.environ.get("SPACES_ZERO_GPU"))


def on_gpu(duration: Callable | int) -> Callable[[Callable], Callable]:
    """`spaces.GPU(duration=…)` on a ZeroGPU Space, the function itself elsewhere.

    `spaces` must come before CUDA is touched; this module is imported before torch is. Its generators yield pickled
    values from a forked worker, which is why lanes speak in numpy and plain objects only.
    """
    if not ZERO:
        return lambda fn: fn
    import spaces

    return spaces.GPU(duration=duration)
