"""The models this page may run: which, whether they fit, and each loaded once for everybody.

Loading happens on first use or in the background, never at import. A loaded pipeline is attached without a policy,
so it is stock until a run says otherwise, and runs do not share anything that changes (engine.run).
"""

from __future__ import annotations

import json
import shutil
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from app.i18n import plain
from app.look_words import size
from app.settings import EMBEDDED, EMBEDDED_NAME, ROOT, Settings


class Refused(ValueError):
    """A model that this page does not open, said in one sentence."""


class Loaded(NamedTuple):
    """A pipeline, attached; its name to show; the handle with the packed weights."""

    pipe: Any
    name: str
    handle: Any
    embedded: bool


class Models:
    """Loads on demand and keeps the latest two (the embedded one always)."""

    def __init__(self, settings: Settings):
        self._settings, self._lock, self._kept = settings, threading.Lock(), OrderedDict()
        self.progress: tuple[str, int, int] | None = None      # (stage, done, total) of the model being loaded

    def resolve(self, wish: str, lang: str) -> str:
        """The folder or hub id behind a wish. Raises Refused for what this page does not offer."""
        wish = str(wish or EMBEDDED_NAME).strip()
        if wish in (EMBEDDED_NAME, "assets/tiny"):
            return str(EMBEDDED)
        if self._settings.public and wish not in self._settings.models:
            raise Refused(plain(lang, "lab.model.refused", names=", ".join(self._settings.models)))
        if len(wish) > 400 or "\0" in wish:
            raise Refused(plain(lang, "lab.model.refused", names=", ".join(self._settings.models)))
        return wish

    def ready(self, wish: str, lang: str) -> bool:
        """Whether a model is in memory already."""
        return self.resolve(wish, lang) in self._kept

    def get(self, wish: str, lang: str) -> Loaded:
        """Load and attach, or return what is loaded. One at a time: a second caller waits for the first."""
        source = self.resolve(wish, lang)
        with self._lock:
            if source in self._kept:
                self._kept.move_to_end(source)
                return self._kept[source]
            from engine.attach import attach
            from engine.load import load

            try:
                pipe = load(source, progress=self._teller("load"))
                handle = attach(pipe, progress=self._teller("pack"))
            finally:
                self.progress = None
            name = EMBEDDED_NAME if source == str(EMBEDDED) else Path(source).name
            loaded = Loaded(pipe, name, handle, source == str(EMBEDDED))
            self._kept[source] = loaded
            others = [key for key in self._kept if key != str(EMBEDDED)]
            for key in others[:-1]:
                del self._kept[key]
            return loaded

    def _teller(self, stage: str):
        def tell(done: int, total: int) -> None:
            self.progress = stage, done, total

        return tell

    def fits(self, wish: str, lang: str) -> str:
        """One sentence on what the model would take here, from the files' headers alone."""
        source = Path(self.resolve(wish, lang))
        if not source.is_dir():
            return plain(lang, "lab.model.unknown_size")
        weights = sum(f.stat().st_size for f in source.rglob("*.safetensors"))
        inner = sum(f.stat().st_size for f in source.glob("transformer*/*.safetensors"))
        packed = weights - inner + inner * 9 / 32          # 4.5 bits of 16
        free = free_bytes()
        key = "lab.model.fits" if free > weights * 1.3 else "lab.model.fits_not"
        said = plain(lang, key, weights=size(weights), packed=size(packed), free=size(free))
        cache = cache_bytes(source)
        return f'{said} {plain(lang, "lab.model.cache", cache=size(cache))}' if cache else said


def cache_bytes(folder: Path) -> int:
    """Bytes of the 8-bit reuse cache of a CogVideoX folder at its own size with guidance, from its configuration alone;
    0 where that does not tell (other families)."""
    try:
        config = json.loads((folder / "transformer" / "config.json").read_text(encoding="utf-8"))
        patch, shrink = int(config["patch_size"]), int(config["temporal_compression_ratio"])
        frames = (int(config["sample_frames"]) - 1) // shrink + 1
        tokens = frames * (config["sample_height"] // patch) * (config["sample_width"] // patch)
        tokens += int(config["max_text_seq_length"])
        return 2 * tokens * config["num_attention_heads"] * config["attention_head_dim"] * config["num_layers"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0


_shared: Models | None = None


def shared(settings: Settings | None = None) -> Models:
    """The models of this process: one registry, whoever asks first says under which settings."""
    global _shared
    if _shared is None:
        from app.settings import read

        _shared = Models(settings or read())
    return _shared


def free_bytes() -> int:
    """Memory free for a model: of the GPU where torch is loaded and has one, else of the machine."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return int(shutil.disk_usage(ROOT).free)


def vocabulary() -> dict[str, Any] | None:
    """The sentence builder's words, with the scene it starts from."""
    from engine import vocabulary as words

    return {
        "sizes": list(words.SIZES), "colours": list(words.COLOURS), "shapes": list(words.SHAPES),
        "motions": list(words.MOTIONS), "rooms": list(words.ROOMS), "backgrounds": list(words.BACKGROUNDS),
    }


def scene_of(prompt: str) -> dict[str, Any] | None:
    """A prompt as the sentence builder holds it; None where it is not the small model's language."""
    from engine.vocabulary import parse

    try:
        scene = parse(prompt)
    except ValueError:
        return None
    return json.loads(json.dumps({"objects": [vars(o) for o in scene.objects], "place": scene.background}))
