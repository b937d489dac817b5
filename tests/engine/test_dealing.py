"""Processes that take a sweep's work in turn: nothing twice, nothing lost when one of them dies."""

import multiprocessing
import os
import time

import numpy as np
import pytest
import torch

from engine import dealing, shelf, sweep


def parts(count=4):
    return [
        [sweep.Task("dmpq", "{}", f"prompt {n}", seed, 30, 5.0, "weights") for seed in range(2)] for n in range(count)
    ]


def test_a_part_belongs_to_one_until_it_is_done(tmp_path):
    part = parts()[0]
    with dealing.take(tmp_path, part) as mine:
        with dealing.take(tmp_path, part) as other:
            assert mine and not other and other.state == "busy"
    with dealing.take(tmp_path, part) as again:  # let go of without being finished
        assert again
        again.finished()
    with dealing.take(tmp_path, part) as late:
        assert not late and late.state == "done"


def _work(folder, number):
    def execute(task):
        time.sleep(0.01)
        return {"by": number}

    dealing.run(parts(12), folder / "share", sweep.Store(folder / f"{number}.jsonl"), execute)


def test_processes_share_the_list_without_overlap(tmp_path):
    workers = [multiprocessing.get_context("fork").Process(target=_work, args=(tmp_path, n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    keys = [
        key for n in range(3) if (tmp_path / f"{n}.jsonl").exists() for key in sweep.keys_in(tmp_path / f"{n}.jsonl")
    ]
    assert len(keys) == len(set(keys)) == 24


def test_what_a_dying_process_had_taken_is_taken_up_again(tmp_path):
    def breaks(task):
        if task.prompt == "prompt 1":
            raise KeyboardInterrupt
        return {}

    first = sweep.Store(tmp_path / "0.jsonl")
    with pytest.raises(KeyboardInterrupt):
        dealing.run(parts(), tmp_path, first, breaks)
    assert dealing.run(parts(), tmp_path, sweep.Store(tmp_path / "1.jsonl"), lambda task: {}) == 6
    assert len(first) == 2
    # Who joins late knows what is done, and still calls the parts by the same names.
    known = sweep.keys_in(tmp_path / "1.jsonl")
    assert dealing.run(parts(5), tmp_path, sweep.Store(tmp_path / "2.jsonl"), lambda task: {}, done=known) == 2


def test_a_part_with_a_failed_run_is_left_for_a_later_start(tmp_path):
    def fails(task):
        raise ValueError("no such threshold")

    store, told = sweep.Store(tmp_path / "0.jsonl"), []
    assert dealing.run(parts(1), tmp_path, store, fails, failed=lambda task, error: told.append(task)) == 0
    assert len(told) == 2 and dealing.run(parts(1), tmp_path, store, lambda task: {}) == 2


def test_a_part_that_is_not_ready_is_passed_over_and_a_budget_leaves_it_unfinished(tmp_path):
    order, store = [], sweep.Store(tmp_path / "0.jsonl")

    def execute(task):
        order.append(task.prompt)
        return {}

    def ready(task):
        return task.prompt != "prompt 0" or len(order) > 3

    assert dealing.run(parts(3), tmp_path, store, execute, ready=ready) == 6
    assert order == ["prompt 1"] * 2 + ["prompt 2"] * 2 + ["prompt 0"] * 2
    assert dealing.run(parts(3), tmp_path / "other", store, execute, budget_seconds=-1) == 0
    assert dealing.run(parts(1), tmp_path / "other", store, execute, ready=lambda task: False, patience=0.0) == 0


def test_a_reference_is_made_once_and_read_back_bit_for_bit(tmp_path):
    made = []

    def make():
        made.append(1)
        return torch.randn(1, 2, 3, dtype=torch.bfloat16), np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)

    place, device = shelf.Shelf(tmp_path, "cpu weights"), torch.device("cpu")
    latents, frames = place.clip("stock", device, make)
    again, same = shelf.Shelf(tmp_path, "cpu weights").clip("stock", device, make)
    assert len(made) == 1 and torch.equal(latents, again) and again.dtype == latents.dtype and (frames == same).all()
    shelf.Shelf(tmp_path, "other weights").clip("stock", device, make)
    shelf.Shelf(None, "cpu weights").clip("stock", device, make)
    assert len(made) == 3 and all(name.endswith(".npz") for name in os.listdir(tmp_path))
