"""What every test shares: the GPU marker, and a garbage collector that leaves the libraries alone.

GPU tests run where CUDA is and are skipped, visibly, where it is not.
"""

import gc
from importlib.util import find_spec

import pytest


def pytest_collection_finish() -> None:
    # Libraries stay until the end. Looking through their million objects for garbage took half of some tests' time, and
    # nothing that a test makes is among them.
    gc.set_threshold(100_000, 50, 50)
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu or _has_cuda():
        return
    for item in on_gpu:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def _has_cuda() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
