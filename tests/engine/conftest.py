"""Shared fixtures of the live engine's tests."""

import pytest


@pytest.fixture
def one_thread():
    """The random pipelines are so small that a second thread costs more than it saves."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Calibrations that a test stores stay in its own folder."""
    monkeypatch.setenv("SIXBIT_CACHE", str(tmp_path / "cache"))
