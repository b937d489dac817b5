"""The bench on a real small pipeline: every method runs, references are exact, numbers are what they say."""

import math

import pandas as pd
import pytest
import torch

from engine import lab_tasks, methods, probes, sensitivity, sweep
from engine.frontier import Bench
from engine.policy import PRESETS, Policy
from tests import pipelines

STEPS, GUIDANCE = 6, 5.0


@pytest.fixture(scope="module")
def bench():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = Bench(pipelines.cogvideox(layers=2), STEPS, GUIDANCE, height=32, width=32, num_frames=9)
    traces = [
        probes.record_probe(made.attached, made.call_attached, *pair).with_meta(guidance=GUIDANCE)
        for pair in methods.prompts(2, held_out=False)
    ]
    made._probe_traces = lambda: traces

    def measure():
        return sensitivity.sensitivity(made.pipe, lambda: made.latents(made.pipe, *methods.prompts(1)[0]), [3])

    made._sensitivity = measure
    yield made
    torch.set_num_threads(threads)


def one(bench, method, **values):
    prompt, seed = methods.prompts(1)[0]
    return sweep.Task(method, sweep.setting(**values), prompt, seed, STEPS, GUIDANCE, bench.handle.model_hash)


def test_every_first_setting_of_the_frontier_runs(bench):
    grid = {**methods.FRONTIER, **methods.EXTENDED}
    settings = {name: values[-1] for name, values in grid.items() if name not in ("fp16", "dmpq_weighted")}
    rows = {name: bench.execute(one(bench, name, **values)) for name, values in settings.items()}
    for name, row in rows.items():
        assert row["psnr"] > 20 and 0 <= row["skipped"] < 1, name
        assert math.isnan(row["seconds"]) == (name in ("smoothquant_w8a8", "w4a8_first_block_cache")), name
        assert row["weights"] == methods.weights_of(name) in ("16-bit", "int8", "nvfp4"), name
        assert row["bits"] <= row["bits_computed"] + 1e-9, name
        assert math.isnan(row["prompt_accuracy"]), name  # no clip of the embedded model's world
    assert (rows["w4a4"]["bits"], rows["w4a8"]["bits"], rows["w4a16"]["bits"]) == (4, 8, 16)
    assert rows["w4a4"]["psnr"] < rows["w4a8"]["psnr"]
    # The packed weights against themselves, and 8-bit activations against them: closer than to other weights.
    assert rows["w4a16"]["psnr_same_weights"] == math.inf
    assert math.inf > rows["w4a8"]["psnr_same_weights"] > rows["w4a8"]["psnr"]
    assert (
        rows["tdc"]["psnr_same_weights"] == rows["tdc"]["psnr"] and "psnr_same_weights" not in rows["smoothquant_w8a8"]
    )
    assert rows["w4a8_first_block_cache"]["bits_computed"] == 8
    for name in ("dmpq_sensitive", "static_sensitive"):
        assert Policy.from_json(rows[name]["policy"]).weighting == "sensitivity"
        assert rows[name]["bits_computed"] <= 6.3 and 0 < rows[name]["error_threshold"] < 1
    assert rows["mag_cache"]["bits"] == pytest.approx(16 * (1 - rows["mag_cache"]["skipped"]))


def test_the_attached_model_at_stock_precision_is_the_reference(bench):
    row = bench.execute(one(bench, "fp16"))
    assert row["psnr"] == math.inf and row["ssim"] == 1.0 and row["latent_error"] == 0.0


def test_target_bits_are_met_from_below(bench):
    row = bench.execute(one(bench, "dmpq", target_bits=6.0))
    assert 4.5 < row["bits_computed"] <= 6.3  # the replay's 6.0, on another prompt
    assert 0 < row["error_threshold"] < 1


def test_the_threshold_for_bits_is_sought_with_the_rule_that_runs(bench):
    row = bench.execute(one(bench, "dmpq_sensitive", target_bits=6.0))
    lines = probes.sensitive_lines(bench.probe_traces, bench.calibration, bench.sensitivity)
    weighed, plain = (
        probes.threshold_for_bits(bench.probe_traces[:2], 6.0, lines, PRESETS[name]) for name in ("dmpq_sensitive", "dmpq")
    )
    assert row["error_threshold"] == weighed != plain


def test_a_task_of_other_weights_is_refused(bench):
    prompt, seed = methods.prompts(1)[0]
    with pytest.raises(ValueError, match="other weights"):
        bench.execute(sweep.Task("fp16", "{}", prompt, seed, STEPS, GUIDANCE, "elsewhere"))


def test_agreement_and_timing_are_tasks_like_any_other(bench):
    tasks = lab_tasks.agreement_tasks(3, 1, STEPS, GUIDANCE, bench.handle.model_hash)
    rows = [lab_tasks.execute(bench, task) for task in tasks]
    assert all(0 <= row["skips"] <= 1 and row["known"] == 1 for row in rows)
    assert "run_skips" not in rows[0] and "run_skips" in rows[1]
    timing = lab_tasks.timing_tasks({"int8_tdc": ({},)}, "cpu", STEPS, GUIDANCE, bench.handle.model_hash, repeats=1)
    row = lab_tasks.execute(bench, timing[0])
    assert row["seconds"] > 0 and "psnr" not in row
    elsewhere = lab_tasks.timing_tasks({"int8_tdc": ({},)}, "cuda", STEPS, GUIDANCE, bench.handle.model_hash, repeats=1)
    with pytest.raises(ValueError, match="timed on cuda"):
        lab_tasks.execute(bench, elsewhere[0])


def test_times_taken_alone_replace_shared_ones():
    rows = pd.DataFrame({
        "method": ["w4a8", "static_mix", "timing@cpu:w4a8", "timing@cuda:w4a8", "timing@cuda:w4a8"],
        "setting": ["{}", '{"target_bits":6.0}', "{}", "{}", "{}"], "seconds": [9.0, 8.0, 50.0, 2.0, 4.0],
        "psnr": [30.0, 31.0, *[math.nan] * 3], "device": ["cuda", "cuda", "cpu", "cuda", "cuda"], "key": list("abcde"),
        "error_threshold": [math.nan, 0.09, *[math.nan] * 3], "prompt": "p", "seed": 0,
    })  # fmt: skip
    tables = lab_tasks.split(rows)
    assert list(tables) == ["timing", "frontier"] and len(tables["timing"]) == 3
    assert tables["frontier"]["seconds"].iloc[0] == 3.0 and math.isnan(tables["frontier"]["seconds"].iloc[1])
    assert tables["frontier"]["seconds_shared"].tolist() == [9.0, 8.0]
    assert tables["frontier"]["setting"].iloc[1] == '{"error_threshold":0.09}'


def test_single_changes_are_published_apart():
    swept = sweep.setting(**methods.FRONTIER["sixbit"][0])
    rows = pd.DataFrame({
        "method": ["sixbit", "sixbit", "dmpq_weighted"],  # a swept setting, a single change, an extension
        "setting": [swept, sweep.setting(gap="none", tdc_threshold=0.1), '{"target_bits":6.0}'],
        "psnr": 30.0, "error_threshold": 0.12, "key": list("abc"), "seconds": 1.0, "prompt": "p", "seed": 0,
    })  # fmt: skip
    tables = lab_tasks.split(rows)
    assert (len(tables["frontier"]), len(tables["defaults"])) == (2, 1)


def test_a_prompt_at_which_a_sweep_was_cut_short_is_left_out():
    def runs(method, values, prompts):
        text = sweep.setting(**values)
        return [{"method": method, "setting": text, "prompt": f"p{n}", "seed": n, "psnr": 30.0, "error_threshold": math.nan,
                 "key": f"{method}{text}{n}", "seconds": 1.0} for n in prompts]  # fmt: skip

    swept, fine = methods.FRONTIER["tdc"][0], methods.FINE["tdc"][0]
    short = runs("fp16", {}, range(6)) + runs("tdc", swept, range(5)) + runs("tdc", fine, range(2))
    table = lab_tasks.split(pd.DataFrame(short + runs("w4a8", {}, range(6))))["frontier"]
    # Packed weights are a class of their own: what 16-bit weights lack does not shorten it.
    assert table["method"].value_counts().to_dict() == {"fp16": 5, "tdc": 5 + 2, "w4a8": 6}


def test_a_trial_that_was_cut_short_does_not_shorten_the_frontier():
    def runs(method, values, prompts):
        text = sweep.setting(**values)
        return [{"method": method, "setting": text, "prompt": f"p{n}", "seed": n, "psnr": 30.0, "error_threshold": 0.1,
                 "key": f"{method}{text}{n}", "seconds": 1.0} for n in prompts]  # fmt: skip

    trial = methods.SENSITIVE_REUSE["sixbit_sensitive"][0]
    rows = [row for values in methods.FRONTIER["int8_tdc"] for row in runs("int8_tdc", values, range(20))]
    table = lab_tasks.split(pd.DataFrame(rows + runs("sixbit_sensitive", trial, range(18))))["frontier"]
    assert table["method"].value_counts().to_dict() == {"int8_tdc": 60, "sixbit_sensitive": 18}


def test_prompts_of_the_accuracy_runs_alone_are_a_table_of_their_own():
    def runs(method, values, prompts):
        text = sweep.setting(**values)
        return [{"method": method, "setting": text, "prompt": f"p{n}", "seed": n, "psnr": 30.0, "error_threshold": math.nan,
                 "key": f"{method}{text}{n}", "seconds": 1.0} for n in prompts]  # fmt: skip

    swept = [row for values in methods.FRONTIER["tdc"] for row in runs("tdc", values, range(4))]
    tables = lab_tasks.split(pd.DataFrame(swept + runs("fp16", {}, range(10))))
    assert tables["frontier"]["prompt"].nunique() == 4 and len(tables["frontier"]) == 4 * 4
    assert tables["accuracy"]["method"].tolist() == ["fp16"] * 10


def test_a_first_block_cache_on_packed_weights_that_never_fires_is_our_w4a8(bench):
    from engine import peers

    prompt, seed = methods.prompts(1)[0]
    with peers.w4a8_first_block_cache(bench.pipe, 0.0, bench.packed_linears) as usage:
        theirs = bench.latents(bench.pipe, prompt, seed)
    _, ours = bench.trace(methods.policy_of("w4a8", {}), prompt, seed)
    assert usage.skipped == 0 and torch.equal(theirs, ours)
    assert torch.equal(
        bench.latents(bench.pipe, prompt, seed), bench.trace(methods.policy_of("fp16", {}), prompt, seed)[1]
    )


def test_the_order_is_fair_wherever_it_is_cut():
    pairs = methods.prompts(4)
    common = (STEPS, GUIDANCE, "weights")
    grids = {
        "fine": methods.tasks({"tdc": ({"tdc_threshold": 0.5},)}, pairs, *common),
        "frontier": methods.tasks({"fp16": ({},), "w4a8": ({},)}, pairs, *common),
        "agreement": lab_tasks.agreement_tasks(2, 1, *common),
    }
    order = [(task.method, task.seed) for task in lab_tasks.ordered(grids, 2)]
    mixed = ["fp16", "w4a8"] * 2
    assert [method for method, _ in order] == [*mixed, *["agreement"] * 2, *mixed, *["tdc"] * 4]
    assert len(order) == len(set(order)) + 1  # two policies of one prompt
    # What two grids have in common is run once, with the earlier; 16-bit weights apart from packed ones.
    grids = {"frontier": grids["frontier"], "brief": methods.tasks({"w4a8": ({},)}, pairs, *common)}
    parts = [[task.method for task in part] for part in lab_tasks.parts(grids, 2)]
    assert parts == [["w4a8"]] * 4 + [["fp16"]] * 4


def test_every_random_policy_gets_as_many_prompts_as_asked_for():
    found = lab_tasks.agreement_tasks(10, 4, STEPS, GUIDANCE, "weights", repeats=2)
    assert len(found) == 20 and len({(task.setting, task.prompt) for task in found}) == 20
    assert pd.Series([task.seed for task in found]).value_counts().eq(5).all()


def test_seconds_of_shards_that_shared_a_machine_are_not_published():
    rows = pd.DataFrame({
        "method": "w4a8", "setting": "{}", "psnr": 30.0, "error_threshold": math.nan, "key": list("ab"),
        "seconds": [9.0, 2.0], "processes": [8, 1], "prompt": ["p", "q"], "seed": 0,
    })  # fmt: skip
    table = lab_tasks.split(rows)["frontier"]
    assert math.isnan(table["seconds"].iloc[0]) and table["seconds"].iloc[1] == 2.0
    assert table["seconds_shared"].tolist() == [9.0, 2.0]
