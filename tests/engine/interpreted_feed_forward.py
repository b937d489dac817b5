"""A feed-forward through the Triton branch of `engine.products` against its PyTorch branch; see test_products.py."""

import sys

import torch

from engine import products
from kernels import pack_weight, quantize_int8, quantize_nvfp4, target
from kernels.gelu_quantize import gelu_quantize
from kernels.target import Target
from tests.kernels.guarded import quick_interpreter

SAMPLES, TOKENS, WIDTH, HIDDEN = 2, 20, 32, 64
STOCK = target.probe


class Group:
    def __init__(self, rows: int, columns: int):
        self.packed = pack_weight(torch.randn(rows, columns) / columns**0.5)
        self.bias, self.sizes, self.in_features = torch.randn(rows), [rows], columns


class Plan:
    """Stands for an Evaluation: a fixed precision, and PDR with a threshold."""

    def __init__(self, precision: str, purify_to: str, threshold: float):
        self.precision, self.purify_to, self.outlier_threshold = precision, purify_to, threshold
        self.policy = self

    def planned(self, group):
        return self

    def purifiable(self, group) -> bool:
        return self.precision in ("int8", "nvfp4")

    def settle(self, *_, **__) -> None:
        """Nothing is recorded here."""


def run(plan: Plan, up: Group, down: Group, x: torch.Tensor, triton: bool) -> torch.Tensor:
    target.probe = (lambda device: Target("cpu", None, True, False, True, True, "")) if triton else STOCK
    quantizers = {"int8": quantize_int8, "nvfp4": quantize_nvfp4}

    def make(precision, samples):
        return quantizers[precision](x[samples], up.packed.hadamard) if precision else x[samples]

    def activate(hidden, precision, group):
        return gelu_quantize(hidden, quantize=precision, hadamard=group.packed.hadamard)

    out = torch.full((SAMPLES, TOKENS, WIDTH), float("nan"))

    def into(sample, start, part):
        out[sample : sample + 1, start : start + part.shape[1]] = part

    products.feed_forward(plan, up, down, make, activate, torch.float32, SAMPLES, TOKENS, into)
    return out


def main() -> int:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    products._TILE_ROWS = products._STRIP_ROWS = 12
    up, down = Group(HIDDEN, WIDTH), Group(WIDTH, HIDDEN)
    x = torch.randn(SAMPLES, TOKENS, WIDTH)
    worst = 0.0
    # Never an alarm; always one, which lifts 4-bit groups to 8 bits; no say at all.
    for plan in (Plan("int8", "w4a16", 1e9), Plan("nvfp4", "int8", 0.5), Plan("w4a16", "w4a16", 0.5)):
        with quick_interpreter():
            ours, expected = (run(plan, up, down, x, triton) for triton in (True, False))
        error = float((ours - expected).norm() / expected.norm())
        print(f"{plan.precision} to {plan.purify_to} above {plan.outlier_threshold:g}: {error:.2g}")
        worst = max(worst, error)
    return 0 if worst < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
