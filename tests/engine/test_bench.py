"""The bench measures what it says, on a model small enough for a CPU; schedules stretch; failures keep the other rows."""

import pandas as pd
import pytest

from engine import bench
from engine.cli import main
from engine.policy import Policy
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
    return bench.Schedule.from_trace(synthetic.live_trace(Policy.preset("sixbit")))


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


def test_a_schedule_stretches_to_any_size():
    made = schedule()
    share = made.skipped.to_numpy().mean()
    wide = [[made.cell(made.skipped, b, 42, s, 50) for s in range(50)] for b in range(42)]
    assert pd.DataFrame(wide).to_numpy().mean() == pytest.approx(share, abs=0.05)


def test_unknown_names_are_one_sentence(capsys):
    assert main(["bench", "--methods", "fastest"]) == 2
    assert "expected any of stock" in capsys.readouterr().err
    assert main(["bench", "--model", "sora"]) == 2
    assert "cogvideox-5b" in capsys.readouterr().err
