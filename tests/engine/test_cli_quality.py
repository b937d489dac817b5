"""The quality lab's commands on a small checkpoint: record, sweep in shards, resume, merge, tables."""

import json
from pathlib import Path

import pandas as pd
import pytest

from engine.cli import _parser, main
from engine.methods import FRONTIER
from tests import pipelines


@pytest.fixture(scope="module")
def folder(one_thread_throughout, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    pipelines.cogvideox(layers=1).save_pretrained(path)
    return path


def test_from_probes_to_tables(folder, tmp_path, capsys):
    model = ["--model", str(folder), "--device", "cpu", "--steps", "5"]
    out = tmp_path / "frontier.parquet"
    probes = ["--probes", str(tmp_path / "probes")]
    assert main(["theory", *model, "--out", str(tmp_path), "--record", "2", "--layers", "1", "--shard", "0/2"]) == 0
    assert main(["theory", *model, "--out", str(tmp_path), "--record", "2", "--shard", "1/2"]) == 0
    sweep = ["frontier", *model, "--out", str(out), "--prompts", "2", *probes, "--probe-count", "2"]
    methods = ["--methods", "fp16", "dmpq"]
    assert main([*sweep, *methods, "--shard", "0/2"]) == 0
    assert main([*sweep, *methods, "--shard", "1/2", "--budget", "0"]) == 0  # killed before it began
    assert main([*sweep, *methods, "--shard", "1/2"]) == 0
    assert main([*sweep, "--grid", "agreement", "--policies", "3", "--shard", "2/3"]) == 0
    capsys.readouterr()
    assert main([*sweep, *methods, "--shard", "1/2"]) == 0
    each = 1 + len(FRONTIER["dmpq"])
    assert f"0 runs added, {each} of {each} there" in capsys.readouterr().out
    assert main([*sweep, *methods, "--shard", "0/3"]) == 0  # dealt anew over three: all is done already
    assert "0 runs added, 0 of 0 there" in capsys.readouterr().out
    assert main([*sweep, *methods, "--share", str(tmp_path / "share"), "--shard", "3/4"]) == 0
    assert "0 runs added" in capsys.readouterr().out
    assert main([*sweep, "--merge"]) == 0
    rows = pd.read_parquet(out)
    assert len(rows) == 2 * each and rows["prompt"].nunique() == 2
    assert not rows["setting"].str.contains("target_bits").any()
    assert main(["theory", *model, "--out", str(tmp_path), "--rows", str(out)]) == 0
    for name in ("predictor", "points", "drift", "outliers", "rotation", "reuse", "settings"):
        assert (tmp_path / f"theory_{name}.parquet").exists()
    assert len(pd.read_parquet(tmp_path / "sensitivity.parquet")) == 4 * 3
    assert set(json.loads((tmp_path / "recommended.json").read_text())) == {"rule", "tdc_threshold", "error_threshold"}


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--shard", "3/2"], "--shard must be i/n"),
        (["--probe-count", "0"], "--probe-count must be at least 1, got 0"),
        (["--steps", "0"], "--steps must be from 1 to 1,000; got 0"),
        (["--guidance", "nan"], "--guidance must be from 0 to 100; got nan"),
        (["--threads", "0"], "--threads must be from 1 to 1,024; got 0"),
        (["--threads", "99999"], "--threads must be from 1 to 1,024; got 99999"),
        (["--methods", "nonsense"], "no method 'nonsense'"),
        (["--merge"], "nothing to merge"),
        (["--out", "f.csv", "--merge"], "--out must end in .parquet; got 'f.csv'"),
        (["--out", "/proc/f.parquet"], "/proc/f.parquet cannot be written: its folder takes no new file"),
        (["--share", "/proc/nowhere"], "/proc/nowhere takes no new file"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence, folder, tmp_path, capsys):
    code = main(
        ["frontier", "--model", str(folder), "--out", str(tmp_path / "f.parquet"), "--prompts", "1", *arguments]
    )
    assert code in (1, 2) and sentence in capsys.readouterr().err


@pytest.mark.parametrize("place", ["/proc/nowhere", "file"])
def test_a_place_that_takes_no_tables_is_told_before_the_work(place, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert main(["theory", "--model", str(folder), "--out", place, "--record", "1"]) == 2
    assert "takes no new file" in capsys.readouterr().err


def test_a_broken_device_ends_the_process_and_a_failed_run_does_not(folder, tmp_path, monkeypatch, capsys):
    sweep = ["frontier", "--model", str(folder), "--device", "cpu", "--steps", "5", "--methods", "fp16", "w4a16",
             "--prompts", "1", "--share", str(tmp_path / "share"), "--out", str(tmp_path / "f.parquet")]  # fmt: skip

    def broken(bench, task):
        raise RuntimeError(message)

    monkeypatch.setattr("engine.lab_tasks.execute", broken)
    message = "no such threshold"
    assert main([*sweep, "--shard", "0/2"]) == 1 and "2 failed" in capsys.readouterr().out
    message = "CUDA error: an illegal memory access was encountered"
    assert main([*sweep, "--share", str(tmp_path / "other"), "--shard", "1/2"]) == 2
    assert "illegal memory access" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["tune"], ["frontier", "--out", "f.parquet"], ["theory", "--out", "."]])
def test_the_embedded_model_is_found_from_any_folder(command):
    model = Path(_parser().parse_args(command).model)
    assert model.is_absolute() and (model / "model_index.json").is_file()


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--out", "policy.txt"], "ends in .json"),
        (["--out", "/proc/policy.json"], "its folder takes no new file"),
        (["--steps", "0"], "steps must be a whole number"),
        (["--prompt", ""], "prompt is empty"),
    ],
)
def test_tune_checks_before_it_runs(arguments, sentence, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "--model", str(folder), "--prompt", pipelines.PROMPT, *arguments]) == 2
    assert sentence in capsys.readouterr().err
