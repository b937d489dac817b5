"""AdamW for vectors and embeddings, Muon for hidden matrices, an average of the weights; all on flat buffers.

The module computes in its own dtype (bf16 on a GPU) with parameters that are views of one flat buffer; the
optimizer keeps a float32 master copy. Several processes average their gradients in one all-reduce.

Muon (Jordan et al. 2024): the momentum of a matrix is replaced by its nearest semi-orthogonal matrix, found by
five Newton-Schulz steps; scaled by 0.2 sqrt(max(rows, columns)), so that one learning rate suits both (Liu et al.
2025, "Muon is scalable for LLM training").
"""

from __future__ import annotations

import math
from typing import Callable

import torch
import torch.distributed as dist

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_ALIGN = 16                        # elements


def orthogonalize(g: torch.Tensor) -> torch.Tensor:
    """(N, rows, columns) -> the semi-orthogonal factor of each matrix, roughly (singular values 0.7 to 1.2)."""
    a, b, c = _NEWTON_SCHULZ
    x = g.to(torch.bfloat16 if g.is_cuda else torch.float32)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.transpose(1, 2)
        x = a * x + (b * s + c * s @ s) @ x
    return (x.transpose(1, 2) if tall else x).to(g.dtype)


class FlatOptimizer:
    """Owns the parameters of some modules. step(lr) reads .grad, updates the parameters, clears .grad.

    is_matrix(name, parameter) says which parameters Muon takes; convolutions are flattened to (out, rest).
    """

    def __init__(self, named: list[tuple[str, torch.nn.Parameter]], dtype: torch.dtype,
                 is_matrix: Callable[[str, torch.nn.Parameter], bool], betas=(0.9, 0.98), weight_decay=0.01,
                 momentum=0.95, ema=0.9995, clip=1.0):
        self.betas, self.weight_decay, self.momentum, self.decay, self.clip = betas, weight_decay, momentum, ema, clip
        shape_of = lambda p: (p.shape[0], p.numel() // p.shape[0])
        matrices = sorted(((n, p) for n, p in named if is_matrix(n, p)), key=lambda np: shape_of(np[1]))
        others = [(n, p) for n, p in named if not is_matrix(n, p)]
        self.named = matrices + others
        device = named[0][1].device
        self.places, end = [], 0                                     # (start, numel): aligned, as kernels want it
        for _, p in self.named:
            self.places.append((end, p.numel()))
            end += -(-p.numel() // _ALIGN) * _ALIGN
        self.master = torch.zeros(end, device=device)
        self.weights = torch.zeros(end, device=device, dtype=dtype)
        self.gradient = torch.zeros_like(self.weights)
        self.slots = []
        for (_, p), (start, size) in zip(self.named, self.places):
            self.master[start:start + size] = p.detach().reshape(-1).float()
            p.data = self.weights[start:start + size].view(p.shape)
            self.slots.append(self.gradient[start:start + size].view(p.shape))
        self.weights.copy_(self.master)
        self.groups = []                                             # (start, count, rows, columns) of equal shapes
        for (_, p), (start, size) in zip(matrices, self.places):
            rows, columns = shape_of(p)
            if self.groups and self.groups[-1][2:] == (rows, columns) and size % _ALIGN == 0:
                begin, count = self.groups[-1][:2]
                self.groups[-1] = (begin, count + 1, rows, columns)
            else:
                self.groups.append((start, 1, rows, columns))
        self.split = self.places[len(matrices)][0] if others else end
        self.first = torch.zeros_like(self.master)
        self.second = torch.zeros(len(self.master) - self.split, device=device)
        self.average = self.master.clone()
        self.steps = 0

    def step(self, lr: float) -> torch.Tensor:
        """One update; returns the gradient's norm (a tensor, so that nothing waits for the device)."""
        self.steps += 1
        torch._foreach_copy_(self.slots, [torch.zeros_like(p) if p.grad is None else p.grad for _, p in self.named])
        self.clear()
        grad = self.gradient
        if dist.is_initialized():
            dist.all_reduce(grad)
            grad = grad.float() / dist.get_world_size()
        grad = grad.float()
        norm = grad.norm()
        grad.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.master.mul_(1 - lr * self.weight_decay)

        cut, (b1, b2) = self.split, self.betas
        if cut:
            self.first[:cut].lerp_(grad[:cut], 1 - self.momentum)
            update = grad[:cut].lerp(self.first[:cut], self.momentum)
            for begin, count, rows, columns in self.groups:
                piece = slice(begin, begin + count * rows * columns)
                direction = orthogonalize(update[piece].view(count, rows, columns)).reshape(-1)
                self.master[piece].add_(direction, alpha=-lr * 0.2 * max(rows, columns) ** 0.5)
        self.first[cut:].lerp_(grad[cut:], 1 - b1)
        self.second.lerp_(grad[cut:].square(), 1 - b2)
        root = (self.second / (1 - b2 ** self.steps)).sqrt_().add_(1e-8)
        self.master[cut:].addcdiv_(self.first[cut:], root, value=-lr / (1 - b1 ** self.steps))

        self.weights.copy_(self.master)
        self.average.lerp_(self.master, 1 - min(self.decay, (1 + self.steps) / (10 + self.steps)))
        return norm

    def clear(self) -> None:
        """Forget the gradients."""
        for _, p in self.named:
            p.grad = None

    def averaged(self) -> dict[str, torch.Tensor]:
        """The averaged weights by name, in the parameters' shapes, float32."""
        return {name: self.average[start:start + size].view(p.shape).clone()
                for (name, p), (start, size) in zip(self.named, self.places)}

    def use_average(self) -> None:
        """Put the averaged weights into the module (at the end of training)."""
        self.weights.copy_(self.average)

    def state(self) -> dict[str, torch.Tensor]:
        """All that resuming needs."""
        return {"master": self.master, "first": self.first, "second": self.second, "average": self.average,
                "steps": torch.tensor(self.steps)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Raises ValueError if the state belongs to another model."""
        if state["master"].shape != self.master.shape:
            raise ValueError(f"Expected a training state of {len(self.master)} parameters; got "
                             f"{len(state['master'])}: delete it and start again.")
        for name in ("master", "first", "second", "average"):
            getattr(self, name).copy_(state[name])
        self.steps = int(state["steps"])
        self.weights.copy_(self.master)


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then half a cosine down to 1 % of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (0.01 + 0.99 * (0.5 + 0.5 * math.cos(math.pi * min(1.0, done))))
