"""Groups share one packed weight and one product; a layer without a run is a plain Linear."""

import pytest
import torch
from torch import nn

from engine.linear import Group, QuantizedLinear
from kernels import pack_weight, quantized_linear


class Owner:
    """An attachment whose active run is whatever the test says."""

    run = None

    def active(self):
        return self.run


def group_of(sizes, bias=True, keep="cpu", width=64, static=False):
    torch.manual_seed(0)
    members = [nn.Linear(width, size, bias=bias) for size in sizes]
    for member in members:
        member.requires_grad_(False)
    copies = [(member.weight.clone(), None if member.bias is None else member.bias.clone()) for member in members]
    group = Group(Owner(), "transformer", 0, "qkv", members, static)
    group.quantize(keep)
    return group, copies


@pytest.mark.parametrize("bias", [True, False])
def test_members_are_rows_of_one_packed_weight(bias):
    group, copies = group_of([16, 32, 16], bias)
    assert group.packed.shape == (64, 64) and group.macs_per_token == 64 * 64
    x = torch.randn(2, 3, 64)
    for precision in ("nvfp4", "int8", "w4a16"):
        together = quantized_linear(x, group.packed, group.bias, precision)
        for index, (weight, offset) in enumerate(copies):
            alone = quantized_linear(x, pack_weight(weight), offset, precision)
            torch.testing.assert_close(together.split(group.sizes, dim=-1)[index], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keep", ["cpu", "device"])
def test_without_a_run_it_is_a_plain_linear(keep):
    group, copies = group_of([16, 32], keep=keep)
    x = torch.randn(5, 64)
    for member, (weight, bias) in zip(group.members, copies):
        assert isinstance(member, QuantizedLinear)
        assert torch.equal(member(x), torch.nn.functional.linear(x, weight, bias))


def test_dropped_originals_are_said_in_a_sentence():
    group, _ = group_of([16], keep="none")
    group.drop_originals()
    assert group.kept_bytes == 0
    with pytest.raises(RuntimeError, match="keep='none'"):
        group.members[0](torch.randn(2, 64))


def test_the_weight_stands_in_without_taking_memory():
    group, copies = group_of([16])
    weight = group.members[0].weight
    assert weight.shape == (16, 64) and weight.dtype == torch.float32 and weight.untyped_storage().nbytes() == 4
    group.members[0].to(torch.bfloat16)
    assert group.members[0].weight.dtype == torch.bfloat16
    assert group.packed.codes.dtype == torch.uint8 and group.packed.tensor_scale.dtype == torch.int32


def test_restore_gives_back_the_same_tensors():
    members = [nn.Linear(64, 16), nn.Linear(64, 8, bias=False)]
    state = [dict(member.__dict__) for member in members]
    tensors = [list(member.parameters()) for member in members]
    for member in members:
        group = Group(Owner(), "transformer", 0, "out", [member], False)
        group.quantize("cpu")
        group.restore()
        group.restore()
    for member, before, parameters in zip(members, state, tensors):
        assert type(member) is nn.Linear and set(member.__dict__) == set(before)
        assert all(a is b for a, b in zip(member.parameters(), parameters)) and not member._buffers
        assert list(member._parameters) == ["weight", "bias"]


def test_restore_follows_a_cast():
    group, _ = group_of([16])
    member = group.members[0].to(torch.float64)
    group.restore()
    assert member.weight.dtype == torch.float64 and member(torch.ones(1, 64, dtype=torch.float64)).shape == (1, 16)
