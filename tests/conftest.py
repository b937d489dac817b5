"""What every test shares: the GPU marker, two processes for whole folders, and a garbage collector that leaves the
libraries alone.

GPU tests run where CUDA is and are skipped, visibly, where it is not. Tests that measure time are marked `quiet`: no
other test of this run goes on beside them.
"""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

PROCESSES = 2          # the files are dealt to as many, each with its share of the cores
TURNS = "TESTS_TURNS"          # the folder through which the processes of one run wait for each other


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Whole folders are shared by two processes where pytest-xdist is installed; single files, `-s`, a debugger and `-n`
    have it their own way, and so has a machine with a GPU, which is one for both."""
    if hasattr(config, "workerinput"):
        return
    option, cores = config.option, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    folders = all(Path(str(name).split("::")[0]).is_dir() for name in config.args)
    alone = option.usepdb or option.collectonly or option.capture == "no" or cores < PROCESSES or shutil.which("nvidia-smi")
    if getattr(option, "numprocesses", 0) is None and folders and not alone:
        option.numprocesses, option.dist = PROCESSES, "loadfile"
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
            os.environ.setdefault(name, str(cores // PROCESSES))
    if getattr(option, "numprocesses", None):
        config.turns = os.environ[TURNS] = tempfile.mkdtemp(prefix="turns-")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """By files, in their order; the app's as one, because a browser beside its server fills two cores."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/app" if nodeid.startswith("tests/app/") else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Files(config, log)


@contextmanager
def _held(name: str, exclusive: bool) -> Iterator[None]:
    import fcntl

    with (Path(os.environ[TURNS]) / name).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Beside other processes of the run: a `quiet` test waits until it is alone, and the others wait for it."""
    # A test's own subprocess that runs pytest is no process of the run: its test holds the turn for it.
    if not hasattr(item.config, "workerinput") or TURNS not in os.environ or find_spec("fcntl") is None:
        return (yield)
    with ExitStack() as turn:
        with _held("gate", True):          # who waits stands here, so that nobody overtakes him for ever
            turn.enter_context(_held("turn", item.get_closest_marker("quiet") is not None))
        return (yield)


def pytest_collection_finish() -> None:
    # Libraries stay until the end. Looking through their million objects for garbage took half of some tests' time, and
    # nothing that a test makes is among them.
    gc.set_threshold(100_000, 50, 50)
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()
    if hasattr(config, "turns"):
        shutil.rmtree(config.turns, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest first, so that neither process waits for the other at the end, and what wants to be alone last of its own.
    first = [name for name in ("app", "kernels") if any(name in item.path.parts for item in items)]
    items.sort(key=lambda item: ([name not in item.path.parts for name in first], item.get_closest_marker("quiet") is not None))
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
