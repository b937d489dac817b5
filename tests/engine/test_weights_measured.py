"""The weights of a model: measured on its own output, on every layout, kept with its lines, bounded in time."""

import threading

import pytest
import torch

from engine.attach import attach
from engine.calibrate import cache_path, calibrate, evaluations_for_weights, find_calibration
from engine.cli import main
from engine.policy import PRESETS
from engine.records import Calibration
from engine.run import record, shell
from engine.sensitivity import Moments, output_errors, sensitivity
from engine.stream import Started, generate
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")


def settings(pipe):
    arguments = pipelines.arguments(pipe)
    return {
        name: value for name, value in arguments.items() if name not in ("prompt", "generator", "num_inference_steps")
    }


def watched(pipe, **changes):
    moments = Moments(pipe)
    with moments.watched() as follow, record(pipe, PRESETS["fp16"], overrule=follow):
        pipelines.latents(pipe, **changes)
    return moments


@pytest.mark.parametrize("variant", ["cogvideox", "cogvideox 1.5 i2v", "wan 2.1", "wan 2.2", "wan 2.2 5b", "wan v2v"])
def test_every_group_of_every_layout_gets_a_weight(variant):
    pipe, seen = pipelines.VARIANTS[variant](), []
    found = calibrate(
        pipe, [pipelines.PROMPT], steps=4, keep=False, sensitivity=True, progress=lambda *counts: seen.append(counts),
        **settings(pipe),
    )  # fmt: skip
    handle = attach(pipe)
    assert found.weighed and handle.calibration is found
    dynamic = {(group.model, group.block, group.name) for _, group in handle.groups if not group.static}
    assert set(found.rows) == dynamic if variant != "wan 2.2" else set(found.rows) <= dynamic  # one of two ran one step
    assert len({line.weight for line in found.rows.values()} - {1.0}) == len(found.rows)
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1)) and seen[-1][0] == seen[-1][1]
    assert len(seen) <= 2 * 4 + evaluations_for_weights(handle, 4)  # guidance in two forwards at most
    with record(pipe, PRESETS["dmpq_sensitive"]) as run:
        pipelines.latents(pipe)
    assert (run.trace.layers.query("step > 0")["decided_by"] == "predictor").any()


def test_an_attached_pipeline_measures_what_a_stock_one_does():
    stock, pipe = pipelines.cogvideox(), pipelines.cogvideox()
    attach(pipe, policy=PRESETS["w4a4"])  # plain calls follow it, the measurement does not
    moments = watched(pipe, num_inference_steps=4)
    steps = list(moments.taken["transformer"])
    expected = sensitivity(stock, lambda: pipelines.latents(stock, num_inference_steps=4), steps, ("nvfp4", "w4a16"))
    found = output_errors(pipe, moments)
    key = ["model", "block", "layer", "step", "precision"]
    joined = expected.merge(found, on=key, suffixes=("", "_attached"))
    assert len(joined) == len(expected) == len(found) == 2 * 4 * 2 * len(steps)
    assert joined["output_error_attached"].to_numpy() == pytest.approx(joined["output_error"].to_numpy(), rel=0.02)


def test_moments_are_spread_and_leave_the_run_as_it_was():
    pipe = pipelines.wan(two=True)
    attach(pipe)
    before = pipelines.latents(pipe, num_inference_steps=9)
    moments = Moments(pipe)
    with moments.watched() as follow, record(pipe, PRESETS["fp16"], overrule=follow):
        after = pipelines.latents(pipe, num_inference_steps=9)
        pipelines.latents(pipe, num_inference_steps=9, prompt=pipelines.OTHER_PROMPT)  # not looked at
    assert torch.equal(before, after)
    taken = {slot: list(steps) for slot, steps in moments.taken.items()}
    assert set(taken) == {"transformer", "transformer_2"}
    assert {1, 4, 7} <= set(taken["transformer"]) | set(taken["transformer_2"]) <= {0, 1, 4, 7}
    assert len(pipe.transformer._forward_pre_hooks) == 1


def test_another_threads_call_meanwhile_is_not_looked_at():
    """Its forward of the same model comes between the step's plan and the step's own forward."""
    pipe = pipelines.cogvideox(layers=1)
    attach(pipe)
    alone = watched(pipe, num_inference_steps=3).taken["transformer"]
    moments, others = Moments(pipe), shell(pipe)
    with moments.watched() as follow:

        def crowded(position, plan):
            plan = follow(position, plan)
            other = threading.Thread(
                target=pipelines.latents, args=(others,),
                kwargs={"num_inference_steps": 1, "prompt": pipelines.OTHER_PROMPT},
            )  # fmt: skip
            other.start()
            other.join()
            return plan

        with record(pipe, PRESETS["fp16"], overrule=crowded):
            pipelines.latents(pipe, num_inference_steps=3)
    taken = moments.taken["transformer"]
    assert list(taken) == list(alone) == [0, 1, 2]
    for (_, found), (_, expected) in zip(taken.values(), alone.values(), strict=True):
        assert torch.equal(found["encoder_hidden_states"], expected["encoder_hidden_states"])
        assert torch.equal(found["hidden_states"], expected["hidden_states"])


def test_lines_stay_when_weighing_is_broken_off():
    pipe = pipelines.cogvideox(layers=1)

    def stop(done, total):
        if done > 3 + 2:  # of the video, and of the weighing
            raise KeyboardInterrupt

    sizes = {"height": 32, "width": 32, "num_frames": 9}
    with pytest.raises(KeyboardInterrupt):
        calibrate(pipe, [pipelines.PROMPT], steps=3, sensitivity=True, progress=stop, **sizes)
    handle = attach(pipe)
    assert len(handle.calibration.rows) == 4 and not handle.calibration.weighed
    assert Calibration.load(cache_path(handle.model_hash)) == handle.calibration


def test_what_is_counted_beforehand_is_what_is_evaluated():
    pipe, seen = pipelines.cogvideox(layers=1), []
    attach(pipe)
    found = output_errors(
        pipe, watched(pipe, num_inference_steps=2), ("int8",), lambda *counts: seen.append(counts)
    )
    assert set(found["precision"]) == {"int8"} and len(found) == 4 * 2
    assert seen == [(done, 2 * (1 + 4)) for done in range(1, 11)]


def test_weights_stay_when_lines_are_fitted_anew(tmp_path):
    pipe = pipelines.cogvideox(layers=1)
    sizes = {"height": 32, "width": 32, "num_frames": 9, "guidance": 5.0}
    weighed = calibrate(pipe, [pipelines.PROMPT], steps=3, sensitivity=True, **sizes)
    anew = calibrate(pipe, [pipelines.OTHER_PROMPT], steps=4, **sizes)
    assert anew.steps == 4 and anew.weighed
    assert [line.weight for line in anew.rows.values()] == [line.weight for line in weighed.rows.values()]
    known = attach(pipe).model_hash
    assert Calibration.load(cache_path(known)) == anew
    # A fit in the cache from before there were weights takes those of the file beside the model.
    plain = {key: line._replace(weight=1.0) for key, line in anew.rows.items()}
    Calibration(known, 4, 5.0, plain).save(cache_path(known))
    weighed.save(tmp_path / "calibration.json")
    other = pipelines.cogvideox(layers=1)
    other.register_to_config(_name_or_path=str(tmp_path))
    found = find_calibration(other, known)
    assert found.steps == 4 and found.rows == anew.rows


def test_the_command_measures_weights_and_says_how_long(tmp_path, capsys):
    pipelines.cogvideox(layers=1).save_pretrained(tmp_path / "model")
    given = [
        "calibrate", "--model", str(tmp_path / "model"), "--device", "cpu", "--prompt", pipelines.PROMPT,
        "--steps", "3",
    ]  # fmt: skip
    assert main([*given, "--sensitivity", "--out", str(tmp_path / "c.json")]) == 0
    told = capsys.readouterr()
    assert "up to 27 evaluations of the transformer, the work of 9 videos of 3 steps." in told.err
    assert "Weighed by what their error does to the output" in told.out
    found = Calibration.load(tmp_path / "c.json")
    assert found.weighed and len(found.rows) == 4
    assert main([*given, "--out", str(tmp_path / "d.json")]) == 0
    assert "Weighed" not in capsys.readouterr().out and not Calibration.load(tmp_path / "d.json").weighed
    run = [*given[1:], "--presets", "dmpq_sensitive", "--calibration"]
    for name, said in (("c.json", False), ("d.json", True)):
        assert main(["compare", *run, str(tmp_path / name)]) == 0
        assert ("every weight is 1" in " ".join(capsys.readouterr().err.split())) == said


def test_a_policy_that_weighs_without_weights_is_told_so_where_it_is_set():
    pipe = pipelines.cogvideox(layers=1)
    calibrate(pipe, [pipelines.PROMPT], steps=3, keep=False, guidance=5.0, height=32, width=32, num_frames=9)
    with pytest.warns(UserWarning, match="calibrate --sensitivity"):
        attach(pipe, policy=PRESETS["dmpq_sensitive"])
    for name, said in (("dmpq_sensitive", True), ("dmpq", False)):
        events = generate(pipe, pipelines.PROMPT, policy=PRESETS[name], steps=3, height=32, width=32, frames=9)
        warned = " ".join(next(event for event in events if isinstance(event, Started)).warnings)
        events.close()
        assert ("every weight is 1" in warned) == said
