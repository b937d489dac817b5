"""Unpacked weights: made once, never confused, bounded; one shared buffer on a GPU."""

import torch

from kernels import Workspace, pack_weight, quantized_linear


def test_a_weight_is_unpacked_once_per_route():
    packed, x, workspace = pack_weight(torch.randn(8, 64)), torch.randn(4, 64), Workspace()
    first = quantized_linear(x, packed, None, "int8", workspace=workspace)
    held = workspace.nbytes
    assert held == 8 * 64 * 4
    assert torch.equal(quantized_linear(x, packed, None, "int8", workspace=workspace), first)
    assert workspace.nbytes == held
    quantized_linear(x, packed, None, "nvfp4", workspace=workspace)
    assert workspace.nbytes == 2 * held
    workspace.clear()
    assert workspace.nbytes == 0


def test_results_do_not_depend_on_the_workspace():
    x, workspace = torch.randn(4, 64), Workspace(budget=1)
    for seed in range(6):
        torch.manual_seed(seed)
        # Freed weights may come back at the same address: never with the old values.
        packed = pack_weight(torch.randn(8, 64))
        for precision in ("nvfp4", "int8", "w4a16"):
            kept = quantized_linear(x, packed, None, precision, workspace=workspace)
            assert torch.equal(kept, quantized_linear(x, packed, None, precision))


def test_an_in_place_change_of_the_codes_is_seen():
    packed, x, workspace = pack_weight(torch.randn(8, 64)), torch.randn(4, 64), Workspace()
    quantized_linear(x, packed, None, "int8", workspace=workspace)
    packed.codes.zero_()
    assert (quantized_linear(x, packed, None, "int8", workspace=workspace) == 0).all()


def test_the_budget_drops_the_least_recently_used():
    workspace, codes = Workspace(budget=3 * 64), [torch.zeros(4, dtype=torch.uint8) for _ in range(4)]
    made = []

    def use(index):
        def make():
            made.append(index)
            return torch.zeros(16)

        workspace.unpacked("int8", codes[index], make)

    for index in (0, 1, 2, 0, 3, 0, 1):
        use(index)
    assert made == [0, 1, 2, 3, 1]
    assert workspace.nbytes <= 3 * 64


def test_the_buffer_grows_and_is_shared():
    workspace, cpu = Workspace(), torch.device("cpu")
    large = workspace.buffer((8, 16), torch.bfloat16, cpu)
    small = workspace.buffer((4, 16), torch.int8, cpu)
    assert small.data_ptr() == large.data_ptr() and small.dtype == torch.int8 and small.shape == (4, 16)
    assert workspace.nbytes == 256
