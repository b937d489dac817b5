"""Rows shared among PyTorch's threads: each is done once, whatever team OpenMP gives."""

import os
import subprocess
import sys

import pytest

COUNT = """
import collections, threading, torch
from kernels.cpu_share import share_rows
torch.set_num_threads(4)
done, lock = collections.Counter(), threading.Lock()
def work(first, last):
    with lock:
        done.update(range(first, last))
share_rows(4096, 4096, work)
assert len(done) == 4096 and set(done.values()) == {1}, (len(done), set(done.values()))
"""


@pytest.mark.parametrize("setting", [{}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}, {"OMP_MAX_ACTIVE_LEVELS": "0"}])
def test_every_row_is_done_once_in_a_team_smaller_than_asked(setting):
    subprocess.run([sys.executable, "-c", COUNT], env={**os.environ, **setting}, check=True, timeout=120)


def test_an_error_of_a_row_reaches_the_caller():
    from kernels.cpu_share import share_rows

    def work(first, last):
        raise ValueError(f"rows {first} to {last}")

    with pytest.raises(ValueError, match="rows 0 to"):
        share_rows(4096, 4096, work)
