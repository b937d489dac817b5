"""Where a training script runs: one process per GPU, or one on the CPU for the smoke test."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from assets.recipe import world


class Machine:
    """rank, world, device and the compute dtype; log() prints from the first process only."""

    def __init__(self):
        self.world, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
        self.dtype = torch.bfloat16 if cuda else torch.float32
        if cuda:
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = True
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo")
        torch._dynamo.config.recompile_limit = 64
        self.started = time.time()

    def log(self, *words) -> None:
        if self.rank == 0:
            print(f"[{time.time() - self.started:6.1f}s]", *words, flush=True)

    def agree(self, value: float) -> int:
        """The first process's value, rounded, in all of them."""
        number = torch.tensor([int(value)], device=self.device)
        if self.world > 1:
            dist.broadcast(number, 0)
        return int(number.item())

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()


class SceneFeed:
    """Batches of random scenes, made ahead in threads. Chunk k of a process depends on (seed, process, k) only."""

    def __init__(self, machine: Machine, seed: int, batch: int, start: int = 0, chunk: int = 128, **fractions):
        self.batch, self.chunk, self.fractions = batch, chunk, fractions
        self.base = (seed * 64 + machine.rank) * 1_000_000
        self.device = machine.device
        self.makers, self.waiting, self.upcoming = ThreadPoolExecutor(4), deque(), start // chunk
        self.rest, self.at = None, 0
        for _ in range(start % chunk):
            self.next()

    def _make(self, k: int) -> world.Scenes:
        gen = torch.Generator().manual_seed(self.base + k)
        return world.sample(self.batch * self.chunk, gen, **self.fractions)

    def next(self) -> world.Scenes:
        """The next batch, on the device."""
        if self.rest is None or self.at == self.chunk:
            while len(self.waiting) < 5:
                self.waiting.append(self.makers.submit(self._make, self.upcoming))
                self.upcoming += 1
            self.rest, self.at = self.waiting.popleft().result().to(self.device), 0
        scenes = self.rest[self.at * self.batch:(self.at + 1) * self.batch]
        self.at += 1
        return scenes


class Captured:
    """fn(*tensors) -> tensor, which leaves gradients in the optimizer's parameters. On a GPU it runs twice as it is,
    is then captured as a CUDA graph and replayed from there on: a small model's launches cost more than its work.
    """

    def __init__(self, fn, optimizer, enabled: bool):
        self.fn, self.optimizer, self.enabled = fn, optimizer, enabled
        self.calls, self.graph = 0, None

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if not self.enabled or self.calls <= 2:
            return self.fn(*inputs)
        if self.graph is None:
            self._capture(inputs)
        for mine, new in zip(self.inputs, inputs):
            mine.copy_(new)
        self.graph.replay()
        for (_, p), grad in zip(self.optimizer.named, self.grads):
            p.grad = grad                      # each graph writes to places of its own
        return self.result

    def _capture(self, inputs) -> None:
        self.inputs = [x.clone() for x in inputs]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.optimizer.clear()
                self.fn(*self.inputs)
            self.optimizer.clear()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):    # NCCL's watchdog asks for events
            self.result = self.fn(*self.inputs)
        self.grads = [p.grad for _, p in self.optimizer.named]
