"""The bench measures what it says, on a model small enough for a CPU; schedules stretch; failures keep the other rows."""

import pandas as pd
import pytest
import torch

from engine import bench, bench_profile, cli_bench
from engine.cli import main
from engine.policy import Policy
from engine.trace import Trace
from tests import synthetic

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = dict(
    num_attention_heads=2, num_layers=3, sample_height=8, sample_width=8, sample_frames=9, max_text_seq_length=8,
    text_embed_dim=64, time_embed_dim=64,
)  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    for name in ("cogvideox-5b", "cogvideox-2b"):
        monkeypatch.setitem(bench.MODELS, name, {**bench.MODELS[name], **SMALL})


def schedule():
    return bench.Schedule.from_trace(synthetic.live_trace(Policy.preset("sixbit")), "a synthetic run")


def test_rows_hold_bits_skips_and_memory(small):
    run = bench.Bench("cogvideox-5b", "cpu", schedule(), "abc", warm=3, timed=6)
    table = bench.run(run, ["stock", "w4a8", "int8_tdc", "torchao_fp8_compile"])
    assert list(table.columns) == list(bench.COLUMNS)
    rows = table.set_index("method")
    assert rows.loc["w4a8", "bits"] == 8 and rows.loc["stock", "bits"] == 16
    assert 0 < rows.loc["int8_tdc", "skipped"] < 1
    assert rows.loc["int8_tdc", "bits"] == pytest.approx(8 * (1 - rows.loc["int8_tdc", "skipped"]), abs=0.01)
    assert 0 < rows.loc["w4a8", "weights_gb"] < rows.loc["stock", "weights_gb"]
    assert (rows["seconds_per_step"].dropna() > 0).all() and rows["seconds_per_step"].notna().sum() >= 3
    parts = rows.loc["stock", [f"{kind}_share" for kind in bench_profile.KINDS]]
    assert parts.sum() == pytest.approx(1, abs=0.01) and parts["attention_share"] > 0 and parts["gemm_share"] > 0
    assert "a synthetic run" in rows.loc["int8_tdc", "notes"] and "random weights" in rows.loc["stock", "notes"]


def test_the_peer_skips_at_least_the_same_share(small):
    made = schedule()
    row = bench.Bench("cogvideox-5b", "cpu", made, timed=12, profiled=False).run("stock_fbc")
    assert made.share(3, 12) <= row["skipped"] + 1e-3 < made.share(3, 12) + 1 / 12
    # Skipped blocks count as 0 bits, as in every other row.
    assert row["bits"] == pytest.approx(16 * (1 - row["skipped"]), abs=1e-3) and row["bits_computed"] == 16
    after = bench.Bench("cogvideox-5b", "cpu", made, timed=4, profiled=False).run("stock")
    assert "seconds_per_step" in after


def test_one_forward_against_float32(small):
    errors = bench.Bench("cogvideox-5b", "cpu", profiled=False).errors()
    assert list(errors) == ["stock", "w4a16", "w4a8", "w4a4"]
    assert 0 < errors["stock"] < errors["w4a8"] < errors["w4a4"] < 0.2


def test_a_schedule_stretches_to_any_size():
    made = schedule()
    recorded = made.skipped.to_numpy().mean()
    assert made.share(42, 50) == pytest.approx(recorded, abs=0.05)


def test_a_probed_run_skips_the_share_that_is_asked_for():
    trace = Trace.load(cli_bench._RECORDING)
    made = bench.Schedule.from_probe(trace, 0.38, 42, 15, "sunset-star")
    assert made.share(42, 15) == pytest.approx(0.38, abs=0.03) and "sunset-star" in made.origin
    with pytest.raises(ValueError, match="skipped share"):
        bench.Schedule.from_probe(trace, 0.9, 42, 15, "sunset-star")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>", "attention"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNT", "gemm"), ("_scaled_matmul_kernel", "gemm"),
        ("_gelu_quantize_kernel", "quantize"), ("_unpack_kernel", "quantize"), ("_residual_delta_kernel", "quantize"),
        ("void at::native::vectorized_elementwise_kernel<4, BinaryFunctor>", "elementwise"),
        ("_gate_residual_kernel", "elementwise"), ("Memcpy DtoD (Device -> Device)", "elementwise"),
    ],
)  # fmt: skip
def test_kernels_are_sorted_by_name(name, kind):
    assert bench_profile.kind_of(name) == kind


def test_rows_are_on_disk_as_they_come(small, tmp_path, capsys, monkeypatch):
    out, seen = tmp_path / "table.csv", []
    stock = cli_bench._line
    monkeypatch.setattr(
        cli_bench, "_line", lambda row: seen.append(out.exists() and len(pd.read_csv(out))) or stock(row)
    )
    common = ["--layers", "2", "--steps", "4", "--device", "cpu", "--no-profile", "--out", str(out)]
    assert main(["bench", "--methods", "w4a8", "int8_tdc", *common]) == 0
    assert seen == [False, 1] and "a step" in capsys.readouterr().out
    assert main(["bench", "--methods", "w4a16", "--append", *common]) == 0
    before = pd.read_csv(out)
    assert list(before["method"]) == ["w4a8", "int8_tdc", "w4a16"]
    # A row that is measured anew takes the place of the old one, when it comes.
    assert main(["bench", "--methods", "w4a8", "--append", "--commit", "0123456", *common]) == 0
    after = pd.read_csv(out, dtype={"commit": str})
    assert list(after["method"]) == ["int8_tdc", "w4a16", "w4a8"] and after["commit"].iloc[-1] == "0123456"
    assert after["seconds_per_step"].iloc[0] == before["seconds_per_step"].iloc[1]


def test_unknown_names_are_one_sentence(capsys):
    assert main(["bench", "--methods", "fastest"]) == 2
    assert "expected any of stock" in capsys.readouterr().err
    assert main(["bench", "--model", "sora"]) == 2
    assert "cogvideox-5b" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--layers", "0"], "--layers must be at least 1, got 0"),
        (["--layers", "-2"], "--layers must be at least 1, got -2"),
        (["--device", "abacus"], "'abacus' is not available here"),
        (["--out", "/proc/rows.csv"], "its folder takes no new file"),
        (["--out", "rows.txt"], "ends in .csv"),
        (["--kernels", "/proc/kernels.json"], "its folder takes no new file"),
        (["--append"], "--append needs the table to append to"),
        (["--presets", "w4a4", "--threads", "1"], "takes --presets and --threads with --blocks only"),
    ],
)
def test_what_bench_cannot_do_is_said_before_it_starts(small, capsys, arguments, sentence):
    assert main(["bench", "--methods", "stock", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_is_a_model_too(tmp_path):
    from tests import pipelines

    pipe = pipelines.cogvideox(dtype=torch.float32)
    pipe.save_pretrained(tmp_path / "model")
    table = bench.run(bench.Bench(str(tmp_path / "model"), "cpu", profiled=False, timed=4), ["w4a8"])
    assert table.loc[0, "seconds_per_step"] > 0 and "random" not in table.loc[0, "notes"]


def test_a_real_models_size_is_not_begun_on_a_cpu_unasked(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "--model", "cogvideox-5b"]) == 2
    said = capsys.readouterr().err
    assert "no CUDA card here" in said and "--layers 1" in said
