"""What is compiled while progress is shown is all that a run launches: no first step stops to compile.

Without a GPU launches are noted, not run (`tests.kernels.launches`); with one, the same is asked of Triton itself.
"""

from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import pytest
import torch

from engine import first_use, products
from engine.attach import attach
from engine.policy import PRESETS
from engine.records import Calibration, Coefficient
from engine.run import record
from kernels import cpu_fused, residual, target
from kernels.first_use import compile_for_cpu
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")
triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

# Blocks are reused as soon as the rules allow it, so that a few steps meet every kind of call.
EAGER = dict(tdc_threshold=9.0, warmup_steps=0, protect_last=0)
POLICIES = {name: replace(policy, **EAGER) if policy.tdc else policy for name, policy in PRESETS.items()}
POLICIES["lifted"] = replace(PRESETS["sixbit"], precision="nvfp4", purify_to="int8", extrapolation=0.8, **EAGER)
MINDFUL = {"_scaled_matmul_kernel", "_native_kernel", "_sum_tokens_kernel", "_outlier_predicate_kernel"}


@pytest.fixture(params=[(8, 0), (9, 0), (12, 0)], ids=lambda capability: f"sm_{capability[0]}{capability[1]}")
def card(request, monkeypatch):
    """Another machine's branch: the launches of a card of this compute capability are noted, on CPU tensors."""
    from kernels import residual_triton

    capability = request.param
    found = target.Target("cuda", capability, True, capability >= (10, 0), True, True, "Triton kernels.")
    monkeypatch.setattr(target, "probe", lambda _: found)
    launch = residual_triton.residual_delta_triton

    def launch_and_know(x, y, cached=None, format="int8"):
        # Signals of kernels that never ran would stop the run as not finite.
        launch(x, y, cached, format)
        return residual.residual_delta_torch(x, y, cached, format=format)

    monkeypatch.setattr(residual_triton, "residual_delta_triton", launch_and_know)


def both_kinds(handle):
    """A calibration under which half of the groups take NVFP4, the others INT8."""
    lines = {
        (group.model, group.block, group.name): Coefficient(0.0, 0.5 * (index % 2), 0.0, 8)
        for index, (_, group) in enumerate(handle.groups)
        if not group.static
    }
    return Calibration(handle.model_hash, 5, 5.0, lines)


def launches_of_runs(pipe, policies, **options):
    """What `recorded_launches` sees of one call for each policy, and the precisions that were taken."""
    from tests.kernels.launches import recorded_launches

    found, taken = {}, set()
    for name, policy in policies.items():
        with recorded_launches() as found[name], record(pipe, policy, **options) as run:
            pipelines.latents(pipe)
        taken |= set(run.trace.layers["precision"])
    return found, taken


def check(found, compiled):
    from tests.kernels.launches import told

    missing = {name: sorted(map(told, launches - compiled)) for name, launches in found.items() if launches - compiled}
    assert not missing, "\n".join(
        f"{name} would compile {launch}" for name, all_of in missing.items() for launch in all_of
    )


@triton
@pytest.mark.parametrize("times", [1, 1000], ids=["small products", "large products"])
def test_a_fused_model_launches_nothing_that_was_not_compiled(card, times, monkeypatch):
    from kernels import scaled_matmul_triton
    from tests.kernels.launches import recorded_launches

    # The tiles of a video's products, and strips of which the last is shorter.
    stock = scaled_matmul_triton.tiles_for
    monkeypatch.setattr(scaled_matmul_triton, "tiles_for", lambda card, rows, *rest: stock(card, rows * times, *rest))
    monkeypatch.setattr(products, "_TILE_ROWS", 16)
    monkeypatch.setattr(products, "_STRIP_ROWS", 16)
    pipe = pipelines.cogvideox(dtype=torch.bfloat16)
    with recorded_launches() as compiled:
        handle = attach(pipe)
    found, taken = launches_of_runs(pipe, POLICIES, calibration=both_kinds(handle))
    assert taken == {"stock", "w4a16", "int8", "nvfp4", "skipped"}
    assert {"_outlier_predicate_kernel", "_apply_delta_kernel"} < {launch[0] for launch in found["sixbit"]}
    check(found, compiled)
    # The first run of a model is probed, and a call without guidance has one sample.
    with recorded_launches() as probed, record(pipe, POLICIES["tdc"], probe=True):
        pipelines.latents(pipe)
    with recorded_launches() as alone, record(pipe, POLICIES["sixbit"]):
        pipelines.latents(pipe, guidance_scale=1.0)
    check({"probe": probed, "without guidance": alone}, compiled)


@triton
def test_calls_of_other_lengths_find_most_of_it_compiled(card, monkeypatch):
    from tests.kernels.launches import recorded_launches, told

    monkeypatch.setattr(products, "_TILE_ROWS", 16)
    monkeypatch.setattr(products, "_STRIP_ROWS", 16)
    pipe = pipelines.cogvideox(dtype=torch.bfloat16)
    with recorded_launches() as compiled:
        handle = attach(pipe)
    # 27, 16 and 20 tokens of the video, beside 12 of the text; the model's own size has 12 and 12.
    for height, width, frames in ((48, 48, 9), (64, 32, 5), (80, 32, 5)):
        missing = set()
        for policy in (POLICIES["sixbit"], POLICIES["w4a4"]):
            with recorded_launches() as found, record(pipe, policy, calibration=both_kinds(handle)):
                pipelines.latents(pipe, height=height, width=width, num_frames=frames)
            missing |= found - compiled
        # Products look at what their number of rows divides by, and so do two small kernels that join tokens.
        assert {launch[0] for launch in missing} <= MINDFUL and len(missing) <= 2, "\n".join(map(told, missing))


@triton
def test_a_model_without_a_fused_block_launches_nothing_that_was_not_compiled(card, monkeypatch):
    from tests.kernels.launches import recorded_launches

    pipe = pipelines.wan(dtype=torch.bfloat16)
    # The small clips of these tests, not the pipeline's own size.
    monkeypatch.setattr(first_use, "_wan_tokens", lambda *_: 12)
    with recorded_launches() as compiled:
        handle = attach(pipe)
    found, _ = launches_of_runs(pipe, POLICIES, calibration=both_kinds(handle))
    check(found, compiled)


@pytest.mark.skipif(not cpu_fused.usable(), reason="needs Numba")
@pytest.mark.parametrize("dtype, native", [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)])
@pytest.mark.parametrize("int8", [True, False])
def test_a_run_on_a_cpu_takes_no_loop_that_was_not_compiled(dtype, native, int8, monkeypatch):
    from numba import typeof

    here = target.probe("cpu")._replace(native_bf16=native, int8_mm=int8)
    monkeypatch.setattr(target, "probe", lambda _: here)
    taken, share = set(), cpu_fused.share_rows

    def noted(loop, count, size, operands, *room):
        taken.add((loop.__name__, tuple(str(typeof(operand)) for operand in operands)))
        share(loop, count, size, operands, *room)

    monkeypatch.setattr(cpu_fused, "share_rows", noted)
    compile_for_cpu(dtype)
    compiled = set(taken)
    pipe = pipelines.cogvideox(layers=1, dtype=dtype)
    handle = attach(pipe)
    for name, policy in POLICIES.items():
        with record(pipe, policy, calibration=both_kinds(handle)):
            pipelines.latents(pipe, num_inference_steps=3)
        assert not taken - compiled, name
    with record(pipe, POLICIES["tdc"], probe=True):
        pipelines.latents(pipe, num_inference_steps=3)
    with record(pipe, POLICIES["sixbit"]):
        pipelines.latents(pipe, num_inference_steps=3, guidance_scale=1.0, height=48, width=48)
    assert not taken - compiled
    assert {loop for loop, _ in taken} == {loop for loop, _ in compiled}


@pytest.mark.parametrize(
    "build", [pipelines.cogvideox, partial(pipelines.cogvideox, version_15=True), pipelines.wan],
    ids=["cogvideox", "cogvideox 1.5", "wan"],
)  # fmt: skip
def test_the_tokens_it_expects_are_those_of_a_call_at_the_models_own_size(build):
    pipe = build()
    handle = attach(pipe)
    block, _, names = handle.anatomy("transformer", 0)
    seen = []

    class Enough(Exception):
        pass

    def look(_, args, kwargs):
        given = {**dict(zip(names, args)), **kwargs}
        seen.extend(given[name].shape for name in handle.family.streams)
        raise Enough

    hook = block.register_forward_pre_hook(look, with_kwargs=True)
    size = dict.fromkeys(("height", "width"), None) if build is not pipelines.wan else {"height": 480, "width": 832}
    with pytest.raises(Enough):
        pipelines.latents(
            pipe, num_frames=81 if build is pipelines.wan else pipe.transformer.config.sample_frames, **size
        )
    hook.remove()
    expected = first_use.block_of(handle)
    assert {shape[1] for shape in seen} == set(expected.streams) and len(seen) == len(expected.streams)
    assert {shape[2] for shape in seen} == {expected.channels} and seen[0][0] == expected.samples


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["device", "host"])
def test_runs_on_a_card_compile_nothing(cache, monkeypatch):
    from triton import knobs

    pipe = pipelines.cogvideox(dtype=torch.bfloat16).to("cuda")
    handle = attach(pipe, cache=cache)
    compiled = []
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda *_, **about: compiled.append(about["repr"]) and None)
    for name, policy in POLICIES.items():
        if cache == "host" and policy.extrapolation:
            continue
        with record(pipe, policy, calibration=both_kinds(handle)):
            pipelines.latents(pipe)
        assert not compiled, f"{name} compiled {compiled}"
