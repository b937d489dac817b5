"""Attach and detach: stock before, stock in between without a policy, stock after; refusals say what to do."""

import copy

import pytest
import torch
from diffusers import CogVideoXPipeline, CogVideoXVideoToVideoPipeline, FirstBlockCacheConfig
from torch import nn

from engine.attach import attach
from engine.linear import QuantizedLinear
from engine.policy import Policy
from engine.refusals import CannotAttach
from engine.run import attachment_of, record
from tests import pipelines

pytestmark = pytest.mark.usefixtures("one_thread")

def fingerprint(pipe) -> dict:
    """Everything of the transformers that attach might leave behind."""
    found = {}
    for slot in ("transformer", "transformer_2"):
        model = getattr(pipe, slot, None)
        if model is None:
            continue
        for name, module in model.named_modules():
            attributes = set(module.__dict__) - {"_diffusers_hook"}
            hooks = (len(module._forward_pre_hooks), len(module._forward_hooks))
            tensors = [(key, id(value)) for key, value in module._parameters.items()]
            found[slot, name] = (type(module), attributes, hooks, tensors, sorted(module._buffers))
    return found


@pytest.mark.parametrize("name", pipelines.VARIANTS)
def test_stock_before_between_and_after(name):
    pipe = pipelines.VARIANTS[name]()
    stock, before, shadows = pipelines.latents(pipe), fingerprint(pipe), set(pipe.__dict__)
    handle = attach(pipe)
    assert any(isinstance(module, QuantizedLinear) for module in pipe.transformer.modules())
    assert torch.equal(pipelines.latents(pipe), stock)
    with record(pipe, Policy.preset("fp16")):
        assert torch.equal(pipelines.latents(pipe), stock)
    with record(pipe, Policy.preset("sixbit")):
        quantized = pipelines.latents(pipe)
    assert quantized.isfinite().all() and not torch.equal(quantized, stock)
    handle.detach()
    assert fingerprint(pipe) == before and set(pipe.__dict__) <= shadows | {"_interrupt", "_attention_kwargs"}
    assert torch.equal(pipelines.latents(pipe), stock)
    handle.detach()


@pytest.mark.parametrize("name", pipelines.VARIANTS)
def test_a_saved_and_loaded_checkpoint_attaches(name, tmp_path):
    pipe = pipelines.VARIANTS[name]()
    pipe.save_pretrained(tmp_path)
    loaded = type(pipe).from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    stock = pipelines.latents(loaded, num_inference_steps=2)
    handle = attach(loaded)
    assert handle.name == tmp_path.name
    assert torch.equal(pipelines.latents(loaded, num_inference_steps=2), stock)
    handle.detach()
    assert torch.equal(pipelines.latents(loaded, num_inference_steps=2), stock)


@pytest.mark.parametrize("build", [pipelines.cogvideox, pipelines.wan], ids=["cogvideox", "wan"])
def test_bfloat16_checkpoints_stay_exact(build):
    pipe = build(dtype=torch.bfloat16)
    stock = pipelines.latents(pipe)
    handle = attach(pipe)
    with record(pipe, Policy.preset("fp16")):
        assert torch.equal(pipelines.latents(pipe), stock)
    with record(pipe, Policy.preset("w4a8")):
        quantized = pipelines.latents(pipe)
    assert quantized.isfinite().all() and quantized.dtype == stock.dtype
    handle.detach()
    assert torch.equal(pipelines.latents(pipe), stock)


def test_plain_calls_follow_the_policy():
    pipe = pipelines.cogvideox()
    stock = pipelines.latents(pipe)
    handle = attach(pipe, policy=Policy.preset("w4a8"))
    quantized = pipelines.latents(pipe)
    assert not torch.equal(quantized, stock)
    with record(pipe, Policy.preset("w4a8")):
        assert torch.equal(pipelines.latents(pipe), quantized)
    handle.policy = None
    assert torch.equal(pipelines.latents(pipe), stock)


def test_progress_tells_of_packing_then_of_compiling():
    told = []
    handle = attach(pipelines.cogvideox(layers=1), progress=lambda *step: told.append(step))
    packing = len(handle.groups)
    assert told[:packing] == [(done, packing) for done in range(1, packing + 1)]
    assert told[packing:] in ([], [(packing + 1, packing + 1)])


def test_an_uncalibrated_predictor_is_said():
    pipe = pipelines.cogvideox(layers=1)
    with pytest.warns(UserWarning, match="not calibrated"):
        attach(pipe, policy=Policy.preset("sixbit"))


@pytest.mark.filterwarnings("ignore:This model is not calibrated")
def test_attaching_again_returns_the_same_handle():
    pipe = pipelines.cogvideox()
    handle = attach(pipe)
    assert attach(pipe, policy=Policy.preset("sixbit")) is handle and handle.policy == Policy.preset("sixbit")
    assert attach(pipe) is handle and handle.policy is not None
    with pytest.raises(CannotAttach, match="attached already"):
        attach(pipe, keep="none")
    sibling = CogVideoXVideoToVideoPipeline(**pipe.components)
    assert attach(sibling) is handle


def test_weights_shrink_and_originals_are_counted():
    pipe = pipelines.cogvideox(dtype=torch.bfloat16)
    linears = [m for m in pipe.transformer.transformer_blocks.modules() if type(m) is nn.Linear]
    stock = sum(linear.weight.nbytes for linear in linears)
    handle = attach(pipe, keep="none")
    assert handle.nbytes["packed"] < 0.35 * stock and handle.nbytes["originals"] == 0
    with pytest.raises(RuntimeError, match="dropped"):
        handle.detach()
    with pytest.raises(RuntimeError, match="dropped"):
        with record(pipe, Policy.preset("fp16")):
            pass
    with pytest.raises(RuntimeError, match="dropped"):
        attach(pipe, policy=Policy.preset("tdc"))
    with pytest.raises(RuntimeError, match="dropped"):
        pipelines.latents(pipe)
    with record(pipe, Policy.preset("sixbit")):
        assert pipelines.latents(pipe).isfinite().all()


@pytest.mark.parametrize("keep", ["device", "cpu"])
def test_where_originals_are_kept(keep):
    pipe = pipelines.cogvideox(layers=1)
    weight = pipe.transformer.transformer_blocks[0].ff.net[2].weight
    handle = attach(pipe, keep=keep)
    linear = pipe.transformer.transformer_blocks[0].ff.net[2]
    assert (linear.weight is weight) == (keep == "device")
    assert linear.weight.shape == weight.shape and linear.weight.dtype == weight.dtype
    assert ("weight" in linear._parameters) == (keep == "device")
    assert handle.nbytes["originals"] == sum(
        g.kept_bytes for _, g in handle.groups
    ) and bool(handle.nbytes["originals_on_device"]) == (keep == "device")
    handle.detach()
    assert linear.weight is weight


def test_a_cast_after_attach_leaves_the_packed_weight_alone():
    pipe = pipelines.cogvideox(layers=1)
    handle = attach(pipe)
    before = {path: [part.clone() for part in packed[:4]] for path, packed in handle.packed().items()}
    pipe.to(torch.bfloat16)
    for path, packed in handle.packed().items():
        assert all(torch.equal(a, b) for a, b in zip(before[path], packed[:4]))
    with record(pipe, Policy.preset("sixbit")):
        assert pipelines.latents(pipe).dtype == torch.bfloat16
    handle.detach()
    assert pipe.transformer.transformer_blocks[0].attn1.to_q.weight.dtype == torch.bfloat16
    assert pipelines.latents(pipe).isfinite().all()


def test_adaln_stays_stock_when_asked():
    pipe = pipelines.cogvideox(layers=1)
    handle = attach(pipe, adaln="stock")
    assert type(pipe.transformer.transformer_blocks[0].norm1.linear) is nn.Linear
    assert not any("norm" in path for path, _ in handle.groups)
    handle.detach()
    attach(pipe)
    assert isinstance(pipe.transformer.transformer_blocks[0].norm1.linear, QuantizedLinear)


def test_saving_an_attached_pipeline_is_refused(tmp_path):
    pipe = pipelines.cogvideox(layers=1)
    handle = attach(pipe)
    for target in (pipe, pipe.transformer):
        with pytest.raises(RuntimeError, match="detach"):
            target.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    handle.detach()
    pipe.save_pretrained(tmp_path / "model")


LATER = {
    "fuse_lora": "unload_lora_weights", "fuse_qkv_projections": "share one product", "enable_cache": "one cache",
    "enable_layerwise_casting": "packed already",
}


@pytest.mark.parametrize("name", LATER)
def test_operations_on_weights_are_refused_while_attached(name):
    pipe = pipelines.cogvideox(layers=1)
    stock = getattr(pipe.transformer, name)
    handle = attach(pipe)
    with pytest.raises(RuntimeError, match=LATER[name]):
        getattr(pipe.transformer, name)()
    if hasattr(pipe, name):
        with pytest.raises(RuntimeError, match=LATER[name]):
            getattr(pipe, name)()
    handle.detach()
    assert getattr(pipe.transformer, name) == stock


def test_every_linear_is_listed_with_what_happens_to_it():
    pipe = pipelines.wan(layers=1)
    listed = attach(pipe).layers()
    linears = {f"transformer.{n}" for n, m in pipe.transformer.named_modules() if isinstance(m, nn.Linear)}
    assert {row["path"] for row in listed} == linears
    roles = {row["path"].removeprefix("transformer."): row["role"] for row in listed}
    assert roles["blocks.0.attn1.to_v"] == "self_qkv" and roles["blocks.0.attn2.to_k"] == "static W4A16"
    assert roles["proj_out"] == "left alone" and len(set(roles.values())) == 8


def test_packed_weights_load_without_the_originals():
    pipe = pipelines.cogvideox(layers=1)
    handle = attach(pipe)
    with record(pipe, Policy.preset("w4a8")):
        expected = pipelines.latents(pipe)
    empty = pipelines.cogvideox(layers=1)
    for module in empty.transformer.transformer_blocks.modules():
        if type(module) is nn.Linear:
            module.weight = nn.Parameter(module.weight.to("meta"))
    loaded = attach(empty, keep="none", packed=handle.packed(), known_hash=handle.model_hash)
    assert loaded.model_hash == handle.model_hash
    with record(empty, Policy.preset("w4a8")):
        assert torch.equal(pipelines.latents(empty), expected)
    with pytest.raises(ValueError, match="must be 'none'"):
        attach(pipelines.cogvideox(layers=1), packed=handle.packed())


def test_copying_an_attached_pipeline_is_refused():
    pipe = pipelines.cogvideox(layers=1)
    attach(pipe)
    with pytest.raises(TypeError, match="detach it first"):
        copy.deepcopy(pipe.transformer)


def test_a_failure_half_way_leaves_the_pipeline_stock():
    pipe = pipelines.cogvideox()
    stock, before = pipelines.latents(pipe), fingerprint(pipe)

    def fail(done, total):
        if done == total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attach(pipe, keep="none", progress=fail)
    assert fingerprint(pipe) == before and attachment_of(pipe) is None
    assert torch.equal(pipelines.latents(pipe), stock)


def enabled_cache(pipe):
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))


def layerwise_casting(pipe):
    pipe.transformer.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)


def fp8_weights(pipe):
    linear = pipe.transformer.transformer_blocks[0].ff.net[2]
    linear.weight.data = linear.weight.data.to(torch.float8_e4m3fn)


def meta_weights(pipe):
    linear = pipe.transformer.transformer_blocks[0].ff.net[2]
    linear.weight = nn.Parameter(linear.weight.to("meta"))


def fused_projections(pipe):
    pipe.transformer.fuse_qkv_projections()


def group_offload(pipe):
    pipe.transformer.enable_group_offload(
        onload_device=torch.device("cpu"), offload_type="block_level", num_blocks_per_group=1
    )


def foreign_forward(pipe):
    block = pipe.transformer.transformer_blocks[0]
    stock = block.forward
    block.forward = lambda *args, **kwargs: stock(*args, **kwargs)


def quantized_layer(pipe):
    class Linear4bit(nn.Linear):
        pass

    pipe.transformer.transformer_blocks[0].ff.net[2].__class__ = Linear4bit


def model_offload(pipe):
    from accelerate.hooks import CpuOffload, add_hook_to_module

    add_hook_to_module(pipe.transformer, CpuOffload(execution_device="cpu"))


REFUSALS = {
    enabled_cache: "disable_cache", layerwise_casting: "layerwise casting", fp8_weights: "float8_e4m3fn",
    meta_weights: "meta", fused_projections: "unfuse_qkv_projections", group_offload: "group offloading",
    foreign_forward: "hook", quantized_layer: "Linear4bit", model_offload: "remove_all_hooks",
}


@pytest.mark.parametrize("disturb", REFUSALS, ids=lambda function: function.__name__)
def test_states_that_are_refused(disturb):
    pipe = pipelines.cogvideox(layers=2)
    disturb(pipe)
    before = fingerprint(pipe)
    with pytest.raises(CannotAttach, match=REFUSALS[disturb]) as caught:
        attach(pipe)
    assert str(caught.value).count("\n") == 0 and len(str(caught.value)) < 300
    assert fingerprint(pipe) == before


def test_lora_is_refused_until_unloaded():
    peft = pytest.importorskip("peft")
    pipe = pipelines.cogvideox(layers=1)
    pipe.transformer.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"]))
    with pytest.raises(CannotAttach, match="unload_lora_weights"):
        attach(pipe)
    pipe.unload_lora_weights()
    handle = attach(pipe)
    pipe.transformer.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"]))
    with record(pipe, Policy.preset("sixbit")):
        assert pipelines.latents(pipe).isfinite().all()
    with pytest.raises(CannotAttach, match="unload_lora_weights"):
        handle.detach()


def test_blocks_compiled_after_attach_decide_alike():
    pipe = pipelines.wan()
    attach(pipe)
    with record(pipe, Policy.preset("int8_tdc")):
        expected = pipelines.latents(pipe)
    pipe.transformer.compile_repeated_blocks(backend="eager")
    with record(pipe, Policy.preset("int8_tdc")):
        assert torch.equal(pipelines.latents(pipe), expected)
    compiled = pipelines.wan(layers=1)
    compiled.transformer = torch.compile(compiled.transformer, backend="eager")
    with pytest.raises(ValueError, match="attach first"):
        attach(compiled)


def test_a_disabled_cache_leaves_nothing_in_the_way():
    pipe = pipelines.cogvideox()
    stock = pipelines.latents(pipe)
    enabled_cache(pipe)
    pipe.transformer.disable_cache()
    before = fingerprint(pipe)
    handle = attach(pipe, policy=Policy.preset("w4a8"))
    assert not torch.equal(pipelines.latents(pipe), stock)
    handle.detach()
    assert fingerprint(pipe) == before and torch.equal(pipelines.latents(pipe), stock)


def test_detach_refuses_hooks_that_came_later():
    pipe = pipelines.cogvideox(layers=2)
    handle = attach(pipe)
    group_offload(pipe)
    with record(pipe, Policy.preset("sixbit")):
        assert pipelines.latents(pipe).isfinite().all()
    with pytest.raises(CannotAttach, match="then detach"):
        handle.detach()
    assert handle.attached


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": "disk"}, "auto, cpu, device, none"), ({"adaln": "int8"}, "w4a16, stock"),
        ({"policy": "sixbit"}, "preset"),
    ],
)
def test_options_out_of_range(options, words):
    pipe = pipelines.cogvideox(layers=1)
    with pytest.raises(ValueError, match=words):
        attach(pipe, **options)
    assert attachment_of(pipe) is None and isinstance(pipe, CogVideoXPipeline)
