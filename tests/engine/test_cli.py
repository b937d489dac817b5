import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine import Policy, Trace
from engine.cli import main, read_policy
from engine.commands import check_target, counted
from engine.compare import COLUMNS, busy, sample_prompts, summary
from engine.records import Calibration, Coefficient
from engine.video import read_mp4
from engine.vocabulary import parse
from tests import pipelines
from tests.crowd import one_crowded_core

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "cog"
    pipelines.cogvideox().save_pretrained(folder)
    return str(folder)


def generate(model, folder, *more):
    return main([
        "generate", "--model", model, "--prompt", pipelines.PROMPT, "--steps", "2", "--frames", "9",
        "--out", str(folder / "out.mp4"), *more,
    ])  # fmt: skip


def test_generate_writes_a_video_and_a_trace_that_load(model, tmp_path, capsys):
    assert generate(model, tmp_path, "--policy", "sixbit", "--seed", "5", "--trace", str(tmp_path / "run.parquet")) == 0
    frames, fps = read_mp4(tmp_path / "out.mp4")
    assert frames.shape == (9, 32, 32, 3) and fps == 8
    trace = Trace.load(tmp_path / "run.parquet")
    assert trace.meta.seed == 5 and trace.meta.prompt == pipelines.PROMPT and len(trace.blocks) == 4
    told = capsys.readouterr()
    said = ("seed 5, 2 steps, guidance", "bits on average", "0 blocks skipped, no gain")
    assert all(part in told.out for part in said)
    assert "not calibrated" in told.err


def test_the_same_seed_gives_the_same_file(model, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        assert generate(model, tmp_path / name, "--seed", "0", "--policy", "w4a8") == 0
    assert np.array_equal(read_mp4(tmp_path / "a" / "out.mp4")[0], read_mp4(tmp_path / "b" / "out.mp4")[0])


def test_a_policy_from_a_file_with_changed_fields(tmp_path):
    class Given:
        policy = str(tmp_path / "policy.json")
        set = ["tdc_threshold=0.2", "pdr=false", "tuned_steps=none", "gap=none", "gap=cubic"]

    Policy(max_skips=1, tuned_steps=30).save(Given.policy)
    with pytest.raises(ValueError, match="gap must be one of"):
        read_policy(Given)
    Given.set = Given.set[:4]
    assert read_policy(Given) == Policy(max_skips=1, tdc_threshold=0.2, pdr=False, tuned_steps=None, gap="none")
    Given.set = ["tdc=0", "pdr=1"]
    assert read_policy(Given) == Policy(max_skips=1, tdc=False)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--policy", "seven_bit"], "--policy must be one of auto, fp16"),
        (["--policy", "w/p.txt"], "ends in .json; got 'w/p.txt'"),
        (["--set", "tdc=perhaps"], "tdc must be true or false; got 'perhaps'"),
        (["--policy", "missing.json"], "no such file"),
        (["--set", "speed=9"], "--set expects FIELD=VALUE"),
        (["--set", "tdc_threshold=much"], "tdc_threshold must be a number"),
        (["--out", "out.avi"], "ends in .mp4"),
        (["--out", "no/such/folder/out.mp4"], "folder does not exist"),
        (["--out", "/proc/out.mp4"], "its folder takes no new file"),
        (["--trace", "/proc/run.parquet"], "/proc/run.parquet cannot be written"),
        (["--calibration", "missing.json"], "no such file"),
        (["--trace", "run.csv"], "ends in .parquet"),
        (["--model", "no/such/folder/here"], "There is no folder"),
        (["--height", "488"], "nearest are 480 and 496"),
        (["--frames", "16"], "nearest are 9 and 17"),
        (["--steps", "0"], "steps must be a whole number"),
        (["--seed", "-1"], "seed must be a whole number"),
        (["--device", "abacus"], "not available here; leave it out, or choose "),
        (["--prompt", ""], "prompt is empty"),
    ],
)
def test_bad_requests_end_in_one_sentence(model, tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert generate(model, tmp_path, *arguments) == 2
    told = capsys.readouterr().err
    assert sentence in " ".join(told.split()) and "Traceback" not in told
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_a_target_is_tried_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "old.mp4").write_bytes(b"old")
    (tmp_path / "folder.mp4").mkdir()
    check_target(tmp_path / "old.mp4", ".mp4")
    assert (tmp_path / "old.mp4").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(ValueError, match="it is a folder"):
        check_target(tmp_path / "folder.mp4", ".mp4")


def test_numbers_agree_with_their_nouns():
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["generate", "--prompt", "p", "--seed", "abc"], "error: --seed must be a whole number; got 'abc'; "),
        (["generate", "--prompt", "p", "--steps", "1.5"], "error: --steps must be a whole number; got '1.5'; "),
        (["tune", "--guidance", "much"], "error: --guidance must be a number; got 'much'; "),
        (["bench", "--layers", "few"], "error: --layers must be a whole number; got 'few'; "),
        (["generate"], "error: the following arguments are required: --prompt; "),
        (["frontier"], "required: --out"),
        (["sing"], "invalid choice: 'sing'"),
    ],
)
def test_what_cannot_be_parsed_is_one_line(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and sentence in told and told.count("\n") == 1


def test_an_argument_that_is_no_text_is_one_line(tmp_path, capsys):
    # How Python hands on the byte 0xff of a terminal that speaks UTF-8.
    for arguments in (["--prompt", "\udcff red"], ["--prompt", "p", "--trace", str(tmp_path / "\udcff.parquet")]):
        assert main(["generate", *arguments]) == 2
        told = capsys.readouterr().err
        assert "is no text in the encoding of this terminal" in told and told.count("\n") == 1


@pytest.mark.parametrize(
    "shell, code, shown",
    [
        ("PYTHONIOENCODING=ascii {engine} compare --help", 0, "webm, ?,"),
        ("{engine} generate --help | head -n 1", 0, "usage: python -m engine generate"),
        ("{engine} generate --prompt p --policy seven_bit >&-", 2, ""),
        ("{engine} generate --help 2>&- >&-", 0, ""),
        ("COLUMNS=1 {engine} generate --help", 0, "--negative-prompt"),
    ],
)
def test_streams_that_are_narrow_closed_or_of_few_characters(shell, code, shown):
    command = shell.format(engine=f"{sys.executable} -m engine")
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == code and "Traceback" not in result.stderr
    assert shown in result.stdout and bool(result.stdout) == bool(shown)


def test_anything_unforeseen_is_a_sentence_too(model, tmp_path, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("somewhere\ndeep")

    monkeypatch.setattr("engine.stream.generate", broken)
    assert generate(model, tmp_path) == 1
    assert "unexpected ZeroDivisionError: somewhere deep" in " ".join(capsys.readouterr().err.split())


def test_ctrl_c_stops_cleanly(model, tmp_path, monkeypatch, capsys):
    from engine.stream import Step
    from engine.stream import generate as real

    def interrupted(*args, **kwargs):
        for event in real(*args, **kwargs):
            if isinstance(event, Step):
                raise KeyboardInterrupt
            yield event

    monkeypatch.setattr("engine.stream.generate", interrupted)
    assert generate(model, tmp_path) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.mp4"))


def test_compare_prints_every_preset_and_writes_rows(model, tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    presets = ["fp16", "w4a8", "sixbit"]
    arguments = [
        "--model", model, "--prompt", pipelines.PROMPT, "--steps", "4", "--csv", str(rows), "--presets", *presets
    ]
    assert main(["compare", *arguments]) == 0
    table = pd.read_csv(rows)
    assert list(table.columns) == list(COLUMNS) and list(table["preset"]) == presets
    assert table["psnr"].iloc[0] == np.inf and np.isfinite(table["psnr"].iloc[1])
    assert table["bits"].iloc[1] == 8 and np.isnan(table["packed_bytes"].iloc[0]) and table["packed_bytes"].iloc[1] > 0
    told = capsys.readouterr().out
    assert "Means over 1 prompt;" in told
    assert main(["compare", *arguments[:6], "--presets", "w4a8"]) == 0
    alone = capsys.readouterr().out
    assert "nan" not in alone and "×" in alone
    assert all(name in told for name in (*presets, "computed", "skipped", "purified", "predictor", "PSNR", "packed MB"))


def row(preset, seconds, cpu, reference_cpu=2.0):
    return {"preset": preset, "prompt": "p", "seed": 0, "seconds": seconds, "cpu_seconds": cpu,
            "reference_seconds": 2.0, "reference_cpu_seconds": reference_cpu}  # fmt: skip


def test_runs_that_got_little_of_a_core_are_counted_once():
    assert busy([]) == busy([row("fp16", 2.0, 2.0), row("w4a8", 1.0, 0.81), row("sixbit", 1.0, 3.0)]) == ""
    assert busy([row("fp16", 2.0, np.nan, np.nan), row("w4a8", 1.0, np.nan, np.nan)]) == ""
    told = busy([row("fp16", 2.0, 1.5, 1.5), row("w4a8", 1.0, 1.0, 1.5), row("sixbit", 1.0, 0.79, 1.5)])
    assert told == (
        "The machine was busy: 2 of 3 runs got less than 80% of a core; times and speeds are unreliable."
    )
    assert "1 of 2 runs" in busy([row("w4a8", 1.0, 1.0, 1.5)])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a core to crowd")
def test_compare_on_a_crowded_core_says_that_its_times_are_unreliable(model, capsys):
    arguments = ["--model", model, "--prompt", pipelines.PROMPT, "--steps", "6", "--presets", "w4a8"]
    with one_crowded_core():
        assert main(["compare", *arguments]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "The machine was busy: 2 of 2 runs got less than 80% of a core; times and speeds are unreliable."


def test_summary_averages_and_keeps_losing_rows():
    rows = [
        {
            **dict.fromkeys(COLUMNS, 1.0), "preset": preset, "prompt": "p", "seconds": seconds, "psnr": psnr,
            "reference_seconds": 2.0,
        }  # fmt: skip
        for preset, seconds, psnr in (("fp16", 2.0, np.inf), ("slow", 4.0, 20.0), ("slow", 4.0, np.inf))
    ]
    means = summary(rows).set_index("preset")
    assert summary(rows[1:]).loc[0, "speedup"] == 0.5
    assert (
        means.loc["slow", "speedup"] == 0.5 and means.loc["slow", "psnr"] == 60 and means.loc["fp16", "psnr"] == np.inf
    )


def test_sampled_prompts_are_the_small_models_language():
    prompts = sample_prompts(6, seed=3)
    assert prompts == sample_prompts(6, seed=3) and len(set(prompts)) == 6
    kinds = [(scene.dialect, len(scene.objects)) for scene in map(parse, prompts[:3])]
    assert kinds == [("plain", 1), ("scenic", 1), ("plain", 2)]


def test_a_model_without_words_of_its_own_asks_for_a_prompt(model, capsys):
    assert main(["compare", "--model", model]) == 2
    assert "give at least one with --prompt" in capsys.readouterr().err


def test_calibrate_then_the_predictor_decides(model, tmp_path, capsys):
    out = tmp_path / "calibration.json"
    arguments = ["--model", model, "--prompt", pipelines.PROMPT, "--steps", "4"]
    assert main(["calibrate", *arguments, "--guidance", "3", "--out", str(out)]) == 0
    found = Calibration.load(out)
    assert found.steps == 4 and found.guidance == 3 and len(found.rows) == 8
    told = capsys.readouterr().out
    assert "8 groups from 1 prompt at 4 steps, guidance 3" in told and f"--calibration {out}" in told
    # A file of --out is used where it is named, and only there.
    dynamic = ["--steps", "4", "--policy", "dmpq", "--trace", str(tmp_path / "run.parquet")]
    assert generate(model, tmp_path, *dynamic) == 0
    assert Trace.load(tmp_path / "run.parquet").report.predictor_share == 0
    assert generate(model, tmp_path, *dynamic, "--calibration", str(out)) == 0
    assert Trace.load(tmp_path / "run.parquet").report.predictor_share == 0.75
    # Without --out it goes to the user's cache, where the next command finds it; guidance 0 is a guidance.
    capsys.readouterr()
    assert main(["calibrate", *arguments, "--guidance", "0"]) == 0
    told = capsys.readouterr().out
    assert "guidance 0." in told and "runs of this model on this machine use it" in told
    assert generate(model, tmp_path, "--steps", "4", "--policy", "dmpq", "--trace", str(tmp_path / "run.parquet")) == 0
    assert Trace.load(tmp_path / "run.parquet").report.predictor_share == 0.75


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--steps", "0"], "steps must be a whole number from 1"),
        (["--steps", "-1"], "steps must be a whole number from 1"),
        (["--steps", "1"], "--steps must be at least 2 to calibrate"),
        (["--guidance", "-1"], "guidance must be a number from 0"),
        (["--seed", "-1"], "seed must be a whole number"),
        (["--prompt", " "], "prompt is empty"),
    ],
)
def test_calibrate_and_compare_check_what_they_are_asked_before_they_run(model, tmp_path, capsys, arguments, sentence):
    for command in ("calibrate", "compare"):
        if command == "compare" and arguments == ["--steps", "1"]:
            continue
        given = [command, "--model", model, "--prompt", pipelines.PROMPT, "--steps", "2", *arguments]
        assert main(given) == 2
        told = capsys.readouterr()
        assert sentence in told.err and not told.out
    assert not (tmp_path / "cache").exists()


def test_a_calibration_of_other_weights_is_refused_once_a_model_of_the_hub_is_here(
    model, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("engine.commands.local_folder", lambda model: None)
    lines = {("transformer", 0, "qkv"): Coefficient(0.0, 0.1, 0.0, 8)}
    Calibration("0" * 16, 4, 3.0, lines).save(tmp_path / "other.json")
    assert generate(model, tmp_path, "--calibration", str(tmp_path / "other.json")) == 2
    assert "was fitted on other weights" in capsys.readouterr().err


def test_quantize_then_generate_from_the_packed_folder(model, tmp_path, capsys):
    assert main(["quantize", model, str(tmp_path / "packed")]) == 0
    assert "MB of weights" in capsys.readouterr().out
    assert generate(str(tmp_path / "packed"), tmp_path, "--policy", "w4a8") == 0
    assert generate(str(tmp_path / "packed"), tmp_path, "--policy", "fp16") == 2
    told = capsys.readouterr().err
    assert "packed checkpoint does not hold them" in told and "--policy w4a16" in told and "keep=" not in told
    assert main(["quantize", model, str(tmp_path / "packed")]) == 2


def test_help_is_quick_and_needs_no_torch():
    code = (
        "import sys; from engine.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "calibrate" in result.stdout


def test_the_process_ends_with_the_code_and_nothing_of_its_words_is_lost():
    command = [sys.executable, "-m", "engine", "generate", "--prompt", "p", "--policy", "seven_bit"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2 and not result.stdout
    assert result.stderr.startswith("error: --policy must be one of auto")
