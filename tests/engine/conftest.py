"""Shared fixtures of the live engine's tests."""

from importlib import import_module

import pytest


@pytest.fixture
def one_thread():
    """The random pipelines are so small that a second thread costs more than it saves."""
    yield from _one_thread()


@pytest.fixture(scope="module")
def one_thread_throughout():
    """`one_thread` for all tests of a file, and for its fixtures of that scope."""
    yield from _one_thread()


@pytest.fixture
def pipe():
    """A small random CogVideoX pipeline, attached."""
    from engine.attach import attach
    from tests import pipelines

    made = pipelines.cogvideox()
    attach(made)
    return made


@pytest.fixture
def unloaded(monkeypatch):
    """Fails the test where a command comes to load a model."""
    # `engine.load` is the function; its file has to be asked for by name.
    loading = import_module("engine.load")
    monkeypatch.setattr(loading, "load", lambda *given, **more: pytest.fail("the model was loaded"))


def _one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Calibrations that a test stores stay in its own folder."""
    monkeypatch.setenv("SIXBIT_CACHE", str(tmp_path / "cache"))
