"""The trace: rows, frames, and a file that is whole or refused in one sentence."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.policy import Policy
from engine.trace import BLOCK_COLUMNS, LAYER_COLUMNS, Recorder, Trace, TraceError, TraceMeta, empty_trace
from tests.synthetic import live_trace, probe_trace

KEY = {"call": 0, "model": "transformer", "branch": "", "step": 0, "block": 0}
BLOCK = {**KEY, "steps": 2, "skipped": False, "refreshed": True, "reason": "first step"}
LAYER = {**KEY, "layer": "qkv", "precision": "int8", "decided_by": "first step", "reason": "first step"}


@pytest.fixture(scope="module")
def small() -> Trace:
    return probe_trace(blocks=3, steps=6)


@pytest.fixture
def file(small, tmp_path):
    small.save(tmp_path / "run.parquet")
    return tmp_path / "run.parquet"


def same(a: Trace, b: Trace) -> bool:
    return a.blocks.equals(b.blocks) and a.layers.equals(b.layers) and a.meta == b.meta


# --- Recording


def test_rows_become_typed_frames_with_nan_for_what_was_not_measured():
    recorder = Recorder(TraceMeta())
    recorder.block(**BLOCK, gamma=None)
    recorder.layer(**LAYER, sample=np.arange(16, dtype=np.float32), sample_absmax=15)
    recorder.layer(**{**LAYER, "layer": "up"})
    trace = recorder.trace(seed=7)
    assert list(trace.blocks) == list(BLOCK_COLUMNS) and list(trace.layers) == list(LAYER_COLUMNS)
    assert trace.blocks["gamma"].isna().all() and trace.blocks["known"].all()
    assert trace.layers["sample"][0] == list(range(16)) and trace.layers["sample"][1] is None
    assert trace.meta.seed == 7 and trace.meta.steps == 2 and trace.groups == ["qkv", "up"]


def test_since_hands_out_each_row_once():
    recorder = Recorder(TraceMeta())
    recorder.block(**BLOCK)
    blocks, layers, mark = recorder.since()
    assert (len(blocks), len(layers)) == (1, 0)
    recorder.block(**{**BLOCK, "step": 1})
    recorder.layer(**LAYER)
    blocks, layers, mark = recorder.since(mark)
    assert blocks["step"].tolist() == [1] and len(layers) == 1
    assert [len(t) for t in recorder.since(mark)[:2]] == [0, 0]


def test_a_row_with_a_wrong_or_missing_column_is_refused_at_once():
    recorder = Recorder(TraceMeta())
    with pytest.raises(ValueError, match="no column 'gama'"):
        recorder.block(**BLOCK, gama=1.0)
    with pytest.raises(ValueError, match="needs 'layer'"):
        recorder.layer(**{k: v for k, v in LAYER.items() if k != "layer"})
    assert len(recorder.trace().blocks) == 0


# --- The file


def test_round_trip_keeps_every_bit(small, file):
    assert same(Trace.load(file), small)


def test_round_trip_of_a_run_with_every_kind_of_cell(tmp_path):
    trace = live_trace(Policy(), blocks=4, steps=12)
    trace.save(tmp_path / "run.parquet")
    assert same(Trace.load(tmp_path / "run.parquet"), trace)


def test_round_trip_of_nothing(tmp_path):
    empty_trace().save(tmp_path / "none.parquet")
    loaded = Trace.load(tmp_path / "none.parquet")
    assert same(loaded, empty_trace()) and len(loaded.blocks) == 0


def test_strange_texts_and_numpy_numbers_survive(small, tmp_path):
    odd = "<script>alert(1)</script>\"'../../é你好 🎈" + "x" * 10_000
    trace = small.with_meta(prompt=odd, seed=np.int64(0), fps=np.float32(8), seconds={"a": float("nan"), "b": 1.0})
    trace.save(tmp_path / "run.parquet")
    meta = Trace.load(tmp_path / "run.parquet").meta
    assert meta.prompt == odd and meta.seed == 0 and meta.fps == 8.0 and meta.seconds == {"b": 1.0}


def test_any_tool_can_read_the_file(file, small):
    table = pd.read_parquet(file)
    assert (table["row"] == "block").sum() == len(small.blocks)
    layers = table[table["row"] == "layer"]
    assert layers["error_nvfp4"].to_numpy() == pytest.approx(small.layers["error_nvfp4"].to_numpy())


def test_a_replay_is_not_taken_for_a_recording_after_loading(small, tmp_path):
    small.with_meta(replay="open loop").save(tmp_path / "r.parquet")
    assert Trace.load(tmp_path / "r.parquet").meta.replay == "open loop"


# --- Files from strangers


def refused(path, said: str, **limits) -> None:
    with pytest.raises(TraceError, match=said) as raised:
        Trace.load(path, **limits)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300 and str(path.parent) not in str(raised.value)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.95, 0.9999])
def test_a_truncated_file_is_refused(file, share):
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    refused(file, "not a whole trace file")


def test_a_damaged_file_is_refused_or_reads_as_a_sound_one(file):
    data = file.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(4, len(data), 40):
        hurt = bytearray(data)
        hurt[at] ^= 0xFF
        file.write_bytes(bytes(hurt))
        try:
            trace = Trace.load(file)
        except TraceError as problem:
            assert "\n" not in str(problem)
        else:
            assert list(trace.layers) == list(LAYER_COLUMNS)


def test_bytes_that_were_overwritten_never_load_as_other_values(tmp_path):
    trace = live_trace(Policy(), blocks=6, steps=12)
    trace.save(tmp_path / "run.parquet")
    data = (tmp_path / "run.parquet").read_bytes()
    rng = np.random.default_rng(0)
    refusals = 0
    for number, at in enumerate(rng.integers(4, len(data) - 16, 150)):
        # Every third is put into the footer, which the format gives no checksum.
        at = len(data) - 20 - int(rng.integers(4_000)) if number % 3 == 0 else int(at)
        (tmp_path / "hurt.parquet").write_bytes(data[:at] + rng.bytes(16) + data[at + 16 :])
        try:
            assert same(Trace.load(tmp_path / "hurt.parquet"), trace)
        except TraceError as problem:
            refusals += 1
            assert "\n" not in str(problem)
    assert refusals > 100


def test_one_value_changed_under_a_valid_page_is_refused_and_a_file_without_checksums_loads(small, file):
    table = pq.read_table(file)
    pq.write_table(put("gamma", 0.123)(table), file)
    refused(file, "damaged")
    pq.write_table(table.replace_schema_metadata({b"sixbit": table.schema.metadata[b"sixbit"]}), file)
    assert same(Trace.load(file), small)


@pytest.mark.parametrize("path", [None, 5, "", b"run.parquet"])
def test_what_is_no_path_is_refused_in_one_sentence(small, path):
    with pytest.raises(TraceError, match="Expected the path of a file; got"):
        Trace.load(path)
    with pytest.raises(ValueError, match="Expected the path of a file; got"):
        small.save(path)


def test_a_place_that_cannot_be_written_is_named_as_it_was_given(small, tmp_path):
    with pytest.raises(OSError, match="'a.parquet' cannot be written: its folder does not exist"):
        small.save(tmp_path / "none" / "a.parquet")
    (tmp_path / "w").mkdir()
    with pytest.raises(OSError, match="'w' cannot be written: it is a folder"):
        small.save(tmp_path / "w")
    refused(tmp_path / ("x" * 5000), "no such file")
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\0" * 40 + b"PAR1", b"{}", b"step,block\n1,2\n"])
def test_what_is_no_parquet_is_refused(tmp_path, data):
    (tmp_path / "x.parquet").write_bytes(data)
    refused(tmp_path / "x.parquet", "not a whole trace file")


def test_missing_and_foreign_and_too_large(tmp_path, file):
    refused(tmp_path / "none.parquet", "no such file")
    refused(tmp_path, "but that is a folder; give the file itself")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "foreign.parquet")
    refused(tmp_path / "foreign.parquet", "no trace of this lab")
    refused(file, "over the limit of 0.0 MB", max_bytes=1000)
    refused(file, "90 rows, over the limit of 89", max_rows=89)


def forged(file, change_table=lambda table: table, change_meta=lambda meta: meta):
    """The file with its table and its description changed by a stranger."""
    table = pq.read_table(file)
    meta = change_meta(json.loads(table.schema.metadata[b"sixbit"]))
    text = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    pq.write_table(change_table(table).replace_schema_metadata({b"sixbit": text}), file)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda m: {**m, "schema": 99}, "schema 99, this version reads 1"),
        (lambda m: {**m, "surprise": 1}, "no field 'surprise'"),
        (lambda m: {**m, "prompt": 5}, "unusable prompt"),
        (lambda m: {**m, "seed": "x" * 99}, "unusable seed"),
        (lambda m: {**m, "probe": "yes"}, "unusable probe"),
        (lambda m: {**m, "policy": []}, "unusable policy"),
        (lambda m: {**m, "policy": {"tdc_threshold": -1}}, "tdc_threshold must be"),
        (lambda m: {**m, "policy": {"evil": 1}}, "no field 'evil'"),
        (lambda m: {**m, "seconds": {"a": "b"}}, "unusable seconds"),
        (lambda m: {**m, "versions": {"a": ["b"]}}, "unusable versions"),
        (lambda m: {**m, "replay": "maybe"}, "unusable replay"),
        (lambda m: {**m, "calibration": {"kind": "6bit-calibration"}}, "model_hash"),
        (lambda m: {**m, "steps": 1e400}, "unusable steps"),
        (lambda m: {**m, "steps": 10**8}, "cells .steps, blocks and layers., over the limit of 1,000,000"),
        (lambda m: b"[" * 50_000, "not valid JSON"),
        (lambda m: b"[]", "JSON object"),
        (lambda m: b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_false_description_is_refused(file, change, said):
    forged(file, change_meta=change)
    refused(file, said)


def put(column: str, value, at: int = 0):
    """Replace one value of a column; rows 0–17 are blocks, the rest layers."""

    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[at] = value
        index = table.schema.get_field_index(column)
        return table.set_column(index, column, pa.array(values, table.schema.field(column).type))

    return change


@pytest.mark.parametrize(
    "change, said",
    [
        (put("reason", "because"), "unknown block reason 'because'"),
        (put("precision", "fp2", -1), "unknown layer precision 'fp2'"),
        (put("reason", "budget spent", -1), "unknown layer reason"),
        (put("layer", "<img src=x>" * 50, -1), "layer longer than 80 bytes"),
        (put("model", "m" * 5_000_000), "model longer than 80 bytes"),
        (put("row", "column"), "neither a block nor a layer"),
        (put("row", None), "neither a block nor a layer"),
        (put("gamma", None), "lacks values in the column 'gamma'"),
        (put("skipped", None), "lacks values in the column 'skipped'"),
        (put("precision", None, -1), "lacks values in the column 'precision'"),
        (put("step", -1), "step outside"),
        (put("block", 10**9), "block outside"),
        (put("step", 6), "not below its number of steps"),
        (put("gap", -5), "gap outside"),
        (put("step", 1), "one cell of the map twice"),
        (put("block", 77, -1), "layers of a block that it does not list"),
        (put("sample", [1.0, 2.0], -1), "sample that is not 16 finite numbers"),
        (put("sample", [float("inf")] * 16, -1), "sample that is not 16 finite numbers"),
        (put("sample", [None] * 16, -1), "sample that is not 16 finite numbers"),
        (lambda t: t.drop_columns(["gamma"]), "does not have the columns of a trace"),
        (lambda t: t.append_column("x", pa.nulls(len(t))), "does not have the columns of a trace"),
        (lambda t: t.set_column(4, "step", pa.array(["a"] * len(t))), "columns of a trace .look at 'step'."),
    ],
)
def test_a_false_table_is_refused(file, change, said):
    forged(file, change_table=change)
    refused(file, said)


def test_a_small_file_that_would_unpack_into_much_is_refused(small, tmp_path):
    many = pd.concat([small.layers.assign(call=call) for call in range(1500)], ignore_index=True)
    cells = pd.concat([small.blocks.assign(call=call) for call in range(1500)], ignore_index=True)
    replace(small, layers=many.assign(sample=None), blocks=cells).save(tmp_path / "many.parquet")
    refused(tmp_path / "many.parquet", "rows, over the limit", max_rows=100_000)


def test_a_small_file_whose_map_would_be_huge_is_refused(small, tmp_path):
    far = {"blocks": small.blocks.assign(step=small.blocks["step"] * 19_000, steps=99_999)}
    far["layers"] = small.layers.assign(step=small.layers["step"] * 19_000)
    replace(small, **far).save(tmp_path / "far.parquet")
    refused(tmp_path / "far.parquet", "over the limit of 1,000,000")
