"""Capturing tokens for the lessons, from a small random model."""

import numpy as np
import pytest

from app.lessons.tokens import CAPTURED, read_tokens

torch = pytest.importorskip("torch")


def test_captured_tokens_are_real_inputs_and_readable(tmp_path):
    from app.lessons.capture import capture
    from tests.pipelines import cogvideox

    pipe = cogvideox()
    prompt = "a large red circle moves right on a black background"
    seen = []
    layer = pipe.transformer.transformer_blocks[0].ff.net[2]
    hook = layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().float().numpy()))
    table = capture(pipe, prompt, steps=5, guidance=2.0, seed=0)
    hook.remove()
    blocks = len(pipe.transformer.transformer_blocks)
    assert sorted(table["step"].unique()) == [1, 2, 4] and len(table) == 3 * 4 * blocks
    row = table[(table["group"] == "down") & (table["block"] == 0) & (table["step"] == 2)].iloc[0]
    tokens = seen[2][-1].reshape(-1, seen[2].shape[-1])
    assert (tokens == row["values"]).all(1).any()
    assert row["ratio"] == pytest.approx(float(np.abs(row["values"]).max() / np.abs(row["values"]).mean()))
    assert not any(module._forward_pre_hooks for module in pipe.transformer.modules())

    table.to_parquet(tmp_path / "tokens.parquet")
    back = read_tokens(tmp_path / "tokens.parquet")
    assert len(back) == len(table) and back[0].source == CAPTURED
    np.testing.assert_array_equal(back[0].values, table["values"].iloc[0])


def test_the_typical_token_is_the_median_one():
    from app.lessons.capture import typical

    rows = np.ones((5, 4), np.float32)
    for index, peak in enumerate((1, 9, 3, 30, 5)):
        rows[index, 0] = peak
    values, ratio = typical(rows)
    assert values[0] == 5 and ratio == pytest.approx(5 / 2)
