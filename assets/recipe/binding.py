"""What every word of a caption has to know: which object it belongs to, and what that object and the other one are.

The transformer gives text tokens no position, so it cannot tell by itself which "red" belongs to which "ring": a
word's vector must say it. Linear heads read nine facts from the encoder's output at every word; they are trained
beside the encoder and thrown away. An encoder can satisfy them because a relative position bias tells a word on which
side of "and" it stands, and a second layer then gathers the words that stand on the same side.
"""

from __future__ import annotations

import torch

from assets.recipe.captions import CODES
from assets.recipe.world import Scenes
from engine import vocabulary as V

_SIZES_OF = (len(V.SIZES), len(V.COLOURS), len(V.SHAPES), len(V.MOTIONS))
PLACES = len(V.BACKGROUNDS) + len(V.ROOMS)
# The heads, in order: whose word it is (first, second, the place's), the four attributes of its own object, those of
# the other one with one more class for "there is none", the place.
CLASSES = (3, *_SIZES_OF, *(n + 1 for n in _SIZES_OF), PLACES)
IGNORE = -1


def facts_of(scenes: Scenes) -> torch.Tensor:
    """(B, 9) int64: size, colour, shape, motion of the first object, of the second (one past the last index where
    there is none), the place."""
    columns = [getattr(scenes, n).long() for n in ("size", "colour", "shape", "motion")]
    second = [torch.where(scenes.two, c[:, 1], n) for c, n in zip(columns, _SIZES_OF)]
    return torch.stack([*(c[:, 0] for c in columns), *second, scenes.place.long()], 1)


def labels(ids: torch.Tensor, facts: torch.Tensor) -> torch.Tensor:
    """ids (B, L), facts (B, 9) -> (B, L, 10) int64, one class a head; IGNORE for padding and for rows whose facts are
    negative (a dropped prompt). The place's words and </s> take the first object for their own."""
    def seen(*words):
        return sum((ids == CODES[w]).long() for w in words).cumsum(1) > 0

    place, behind = seen("on", "in", "</s>"), seen("and")
    whose = torch.where(place, 2, behind.long())
    first, second = facts[:, None, 0:4], facts[:, None, 4:8]
    swap = (whose == 1)[..., None]
    own, other = torch.where(swap, second, first), torch.where(swap, first, second)
    everywhere = facts[:, None, 8:9].expand(*ids.shape, 1)
    found = torch.cat([whose[..., None], own, other, everywhere], -1)
    meant = (ids != CODES["<pad>"]) & (facts[:, :1] >= 0)
    return torch.where(meant[..., None], found, IGNORE)


class Heads(torch.nn.Linear):
    """One linear reading for all ten questions: (B, L, d) -> (B, L, 70) logits."""

    def __init__(self, width: int):
        super().__init__(width, sum(CLASSES))


def one_hot(wanted: torch.Tensor) -> torch.Tensor:
    """Labels (B, L, 10) -> (B, L, 70) bool; all False where ignored. No gathers, so that its use has no atomics."""
    parts = [wanted[..., k, None] == torch.arange(n, device=wanted.device) for k, n in enumerate(CLASSES)]
    return torch.cat(parts, -1)


def binding_loss(logits: torch.Tensor, ids: torch.Tensor, facts: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over words and heads, in nats. Shapes are static: it may be captured in a CUDA graph."""
    hit = one_hot(labels(ids, facts)).float()
    spread = torch.cat([part.log_softmax(-1) for part in logits.float().split(CLASSES, -1)], -1)
    return -(spread * hit).sum() / hit.sum().clamp(min=1)


@torch.no_grad()
def accuracy(logits: torch.Tensor, ids: torch.Tensor, facts: torch.Tensor) -> torch.Tensor:
    """(10,) share of words a head reads rightly."""
    wanted = labels(ids, facts)
    guess = torch.stack([part.argmax(-1) for part in logits.split(CLASSES, -1)], -1)
    meant = wanted != IGNORE
    return ((guess == wanted) & meant).sum((0, 1)) / meant.sum((0, 1)).clamp(min=1)


def with_twins(scenes: Scenes) -> Scenes:
    """Every odd scene becomes the one before it with the two colours dealt the other way round: all but the binding is
    equal. Where there is one object, where the colours are the same or where the twin is held out, it stays."""
    even, odd = scenes[0::2], scenes[1::2]
    even = even[slice(0, len(odd))]
    dealt = even.colour.flip(1)
    held = V.held_out_code(even.size, dealt, even.shape, even.motion, even.place[:, None] % 4).any(1)
    twin = even.two & ~held & (even.colour[:, 0] != even.colour[:, 1])
    for name in Scenes.__dataclass_fields__:
        mine, source = getattr(odd, name), dealt if name == "colour" else getattr(even, name)
        choose = twin.view(-1, *[1] * (mine.ndim - 1))
        getattr(scenes, name)[1::2] = torch.where(choose, source, mine)
    return scenes


def are_twins(facts: torch.Tensor) -> torch.Tensor:
    """(B / 2,) bool: whether rows 2k and 2k + 1 of facts (B, 9) are twins. Slices only: a list of indices would make
    the GPU wait for the host."""
    a, b = facts[0::2], facts[1::2]
    kept = (a[:, 0] == b[:, 0]) & (a[:, 2:5] == b[:, 2:5]).all(1) & (a[:, 6:9] == b[:, 6:9]).all(1)
    return kept & (a[:, 1] == b[:, 5]) & (a[:, 5] == b[:, 1]) & (a[:, 1] != a[:, 5]) & (a[:, 4] < _SIZES_OF[0])
