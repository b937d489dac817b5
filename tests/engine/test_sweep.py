"""A sweep must survive a kill, repeat nothing, and split without overlap."""

import pandas as pd
import pytest

from engine import sweep


def tasks(count=6):
    return [
        sweep.Task("dmpq", sweep.setting(error_threshold=0.1), f"prompt {n}", n, 30, 5.0, "weights")
        for n in range(count)
    ]


def test_equal_settings_have_equal_keys_and_different_ones_do_not():
    one, two = tasks(2)
    again = sweep.Task("dmpq", '{"error_threshold":0.1}', "prompt 0", 0, 30, 5.0, "weights")
    assert again.key == one.key != two.key


def test_a_killed_sweep_resumes_without_repeating_or_losing(tmp_path):
    path, ran = tmp_path / "rows.jsonl", []

    def execute(task):
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(task.seed)
        return {"psnr": float(task.seed)}

    with pytest.raises(KeyboardInterrupt):
        sweep.run(tasks(), sweep.Store(path), execute)
    with open(path, "a") as file:
        file.write('{"key": "cut off')
    store = sweep.Store(path)
    assert len(store) == 3
    added = sweep.run(tasks(), store, lambda task: {"psnr": float(task.seed)})
    assert added == 3
    table = sweep.Store(path).frame()
    assert sorted(table["seed"]) == [0, 1, 2, 3, 4, 5]
    assert list(table.columns[:4]) == ["method", "setting", "prompt", "seed"]


def test_shards_cover_everything_once():
    everything = tasks(40)
    parts = [sweep.shard(everything, n, 4) for n in range(4)]
    assert sorted(t.seed for part in parts for t in part) == list(range(40))
    assert all(parts)


def test_one_failing_task_does_not_end_a_sweep_that_is_told_so(tmp_path):
    def execute(task):
        if task.seed == 1:
            raise ValueError("no such threshold")
        return {}

    seen, store = [], sweep.Store(tmp_path / "rows.jsonl")
    assert sweep.run(tasks(3), store, execute, failed=lambda task, error: seen.append((task.seed, str(error)))) == 2
    assert seen == [(1, "no such threshold")]
    with pytest.raises(ValueError, match="no such threshold"):
        sweep.run(tasks(3), store, execute)


def test_what_is_not_ready_waits_for_the_rest_and_is_left_for_later(tmp_path):
    store, there, order = sweep.Store(tmp_path / "rows.jsonl"), set(), []

    def execute(task):
        order.append(task.seed)
        if task.seed == 3:
            there.add(1)
        return {"psnr": 1.0}

    added = sweep.run(
        tasks(5), store, execute, ready=lambda task: task.seed != 2 and (task.seed != 1 or 1 in there), patience=0.0
    )
    assert (order, added) == ([0, 3, 1, 4], 4)
    assert sweep.run(tasks(5), store, execute) == 1 and order[-1] == 2


def test_keys_of_a_file_that_is_being_written_are_read_without_touching_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    sweep.run(tasks(3), sweep.Store(path), lambda task: {"psnr": 1.0})
    with open(path, "a") as file:
        file.write('{"key": "half')
    before = path.read_bytes()
    assert sweep.keys_in(path) == {task.key for task in tasks(3)} and path.read_bytes() == before


def test_timing_tasks_are_dealt_one_by_one():
    assert [task.seed for task in sweep.shard(tasks(5), 1, 2, together=False)] == [1, 3]


def test_stop_and_budget_end_cleanly(tmp_path):
    store = sweep.Store(tmp_path / "rows.jsonl")
    assert sweep.run(tasks(), store, lambda task: {}, stop=lambda: len(store) == 2) == 2
    assert sweep.run(tasks(), store, lambda task: {}, budget_seconds=-1) == 0


def test_summary_has_an_interval_around_the_mean():
    rows = pd.DataFrame({"method": "a", "setting": "{}", "psnr": [30.0, 32.0, 34.0, float("inf")]})
    line = sweep.summary(rows, "psnr").iloc[0]
    assert line["mean"] == pytest.approx((30 + 32 + 34 + 100) / 4)
    assert line["low"] < line["mean"] < line["high"]
    with pytest.raises(ValueError, match="no column 'vmaf'"):
        sweep.summary(rows, "vmaf")


def test_a_foreign_file_is_one_sentence(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        sweep.Store(path)


def test_parquet_replaces_whole(tmp_path):
    path = tmp_path / "frontier.parquet"
    sweep.write_parquet(pd.DataFrame({"psnr": [1.0]}), path)
    sweep.write_parquet(pd.DataFrame({"psnr": [1.0, 2.0]}), path)
    assert len(pd.read_parquet(path)) == 2 and [p.name for p in tmp_path.iterdir()] == ["frontier.parquet"]
