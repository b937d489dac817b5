"""Rows shared among PyTorch's threads: each is done once, whatever team OpenMP gives."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from kernels import cpu_fused, cpu_share

pytestmark = pytest.mark.skipif(not cpu_fused.usable(), reason="needs Numba")

# Adds one to what is there: a row that two threads did would have two, and one left out none.
COUNT = """
import numpy as np, torch
from kernels import cpu_fused, cpu_share
torch.set_num_threads(4)
x, codes = np.zeros((4096, 256), np.float32), np.ones((4096, 256), np.int8)
cpu_share.share_rows(cpu_fused.rows().add_delta_rows, 4096, 256, (x, codes, np.ones(4096, np.float32), x))
assert (x == 1).all()
"""


@pytest.mark.parametrize(
    "setting", [{}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}, {"OMP_MAX_ACTIVE_LEVELS": "0"}]
)
def test_every_row_is_done_once_in_a_team_smaller_than_asked(setting):
    subprocess.run([sys.executable, "-c", COUNT], env={**os.environ, **setting}, check=True, timeout=120)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("openmp", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 64, 701])
def test_parts_and_memory_are_dealt_once(rows, openmp, threads, monkeypatch):
    if openmp and not cpu_share._openmp():
        pytest.skip("PyTorch computes on other threads here")
    if not openmp:
        monkeypatch.setattr(cpu_share, "_openmp", lambda: 0)
    monkeypatch.setattr(cpu_share, "_ELEMENTS_PER_HELPER", 1)
    monkeypatch.setattr(cpu_share, "_ELEMENTS_PER_THREAD", 1)
    given = []
    add = cpu_fused.rows().add_delta_rows

    def noted(team, operands):
        given.append(team)
        add(team, operands)

    x, codes = np.zeros((rows, 16), np.float32), np.ones((rows, 16), np.int8)
    for count in (1, 2, 3):
        threads(count)
        for _ in range(20):
            cpu_share.share_rows(noted, rows, 16, (x, codes, np.ones(rows, np.float32), x))
        _, _, all_rows, step, taken, work = given[-1]
        assert (x == 20 * count).all() and all_rows == rows
        # Everyone who came found room for itself, and the parts up to the end were taken.
        assert 1 <= taken[0] <= len(work) and taken[1] * step >= rows
        assert openmp or count == 1 or taken[0] == count


def test_passes_at_once_do_not_meet(threads):
    """Two threads of Python share out rows at the same time, as two runs of an app do."""
    threads(2)
    inputs = [torch.randn(701, 256, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    expected = [cpu_fused.quantized(x, 128, "nvfp4").values.clone() for x in inputs]
    wrong = []

    def work(x, values):
        threads(2)
        for _ in range(30):
            if not torch.equal(cpu_fused.quantized(x, 128, "nvfp4").values, values):
                wrong.append(threading.get_ident())

    team = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected)]
    for one in team:
        one.start()
    for one in team:
        one.join()
    assert not wrong


def test_an_error_reaches_the_caller(threads, monkeypatch):
    monkeypatch.setattr(cpu_share, "_openmp", lambda: 0)
    main = threading.get_ident()

    def loop(team, operands):
        if threading.get_ident() != main:
            raise ValueError("not here")

    threads(2)
    with pytest.raises(ValueError, match="not here"):
        cpu_share.share_rows(loop, 4096, 4096, ())


def test_no_helper_works_on_after_the_caller_was_stopped(threads, monkeypatch):
    monkeypatch.setattr(cpu_share, "_openmp", lambda: 0)
    main, began, at_work = threading.get_ident(), threading.Event(), []

    def loop(team, operands):
        if threading.get_ident() == main:
            assert began.wait(10)
            raise KeyboardInterrupt
        at_work.append(1)
        began.set()
        time.sleep(0.2)
        at_work.pop()

    threads(2)
    with pytest.raises(KeyboardInterrupt):
        cpu_share.share_rows(loop, 4096, 4096, ())
    assert not at_work
