"""Token ids of scenes without going through strings: the same ids as the tokenizer gives for their prompts."""

from __future__ import annotations

import torch

from assets.recipe.world import Scenes
from engine import vocabulary as V

CODES = {word: i for i, word in enumerate(V.WORDS)}


def _table(words) -> torch.Tensor:
    """(N, longest) ids, -1 where a phrase is shorter."""
    rows = [[CODES[w] for w in phrase.split()] for phrase in words]
    longest = max(map(len, rows))
    return torch.tensor([r + [-1] * (longest - len(r)) for r in rows])


_OBJECT = [_table(V.SIZES), _table(V.COLOURS), _table(V.SHAPES), _table(V.MOTIONS)]
_PLACE = _table([f"on a {b} background" for b in V.BACKGROUNDS] + [f"in a {r} room" for r in V.ROOMS])


def token_ids(scenes: Scenes, length: int = V.MAX_WORDS) -> torch.Tensor:
    """(B, length) int64: words, </s>, padding."""
    count = len(scenes)
    word = lambda w: torch.full((count, 1), CODES[w])
    columns = []
    for o in range(2):
        phrase = [word("and")] if o else []
        phrase.append(word("a"))
        for table, name in zip(_OBJECT, ("size", "colour", "shape", "motion")):
            phrase.append(table[getattr(scenes, name)[:, o]])
        phrase = torch.cat(phrase, 1)
        columns.append(torch.where(scenes.two[:, None], phrase, -1) if o else phrase)
    ids = torch.cat(columns + [_PLACE[scenes.place], word("</s>")], 1)
    order = torch.argsort((ids < 0).long(), dim=1, stable=True)          # move the gaps behind the words
    ids = ids.gather(1, order).clamp(min=0)
    return torch.nn.functional.pad(ids, (0, max(0, length - ids.shape[1])))[:, :length]


def empty_ids(length: int = V.MAX_WORDS) -> torch.Tensor:
    """The empty prompt as the pipeline encodes it: </s>, then padding."""
    ids = torch.zeros(length, dtype=torch.long)
    ids[0] = CODES["</s>"]
    return ids
