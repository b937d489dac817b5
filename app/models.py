"""The models this page may run: which, whether they fit, and each loaded once for everybody.

Loading happens on first use or in the background, never at import. A loaded pipeline is attached without a policy,
so it is stock until a run says otherwise, and runs do not share anything that changes (engine.run).
"""

from __future__ import annotations

import gc
import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from app.i18n import plain, sentences
from app.look_words import size
from app.machine import imported_torch
from app.settings import EMBEDDED, EMBEDDED_NAME, Settings


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
        self._coming: dict[str, Future[Loaded]] = {}
        self._told: dict[str, tuple[str, int, int]] = {}
        # Two large models at once may not fit into the memory; the embedded one must never wait for one of them.
        self._turns = {True: threading.Lock(), False: threading.Lock()}

    @property
    def progress(self) -> tuple[str, int, int] | None:
        """(stage, done, total) of the model that began to load last; None while none loads."""
        with self._lock:
            return next(reversed(self._told.values()), None)

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

    def kept(self, wish: str, lang: str) -> Loaded | None:
        """A model that is in memory already, or None."""
        return self._kept.get(self.resolve(wish, lang))

    def start(self, wish: str, lang: str) -> Future[Loaded]:
        """Begin to load and attach, once for everybody who asks; done at once for what is in memory."""
        source = self.resolve(wish, lang)
        with self._lock:
            if source in self._kept:
                self._kept.move_to_end(source)
                ready: Future[Loaded] = Future()
                ready.set_result(self._kept[source])
                return ready
            if source not in self._coming:
                self._coming[source] = Future()
                threading.Thread(target=self._bring, args=(source,), name="lab-load", daemon=True).start()
            return self._coming[source]

    def get(self, wish: str, lang: str) -> Loaded:
        """Load and attach, or return what is loaded. Raises what loading raised, in one sentence."""
        return self.start(wish, lang).result()

    def _bring(self, source: str) -> None:
        embedded = source == str(EMBEDDED)
        found, error = None, None
        try:
            with self._turns[embedded]:
                found = self._load(source, embedded)
        except Exception as raised:
            error = raised
        with self._lock:
            self._told.pop(source, None)
            future = self._coming.pop(source)
            if found is not None:
                self._kept[source] = found
        if found is not None:
            future.set_result(found)
        else:
            future.set_exception(error)

    def _load(self, source: str, embedded: bool) -> Loaded:
        from engine.attach import attach
        from engine.load import load

        def tell(stage: str, done: int, total: int) -> None:
            with self._lock:
                self._told[source] = stage, done, total
            if not embedded and (stage, done) == ("load", 1):          # its folder was looked at: it will be loaded
                self._make_room()

        pipe = load(source, progress=partial(tell, "load"))
        handle = attach(pipe, progress=partial(tell, "pack"))
        return Loaded(pipe, EMBEDDED_NAME if embedded else Path(source).name, handle, embedded)

    def _make_room(self) -> None:
        """Let go of the large model that is kept, before the next one takes its memory."""
        import torch

        with self._lock:
            for key in [key for key in self._kept if key != str(EMBEDDED)]:
                del self._kept[key]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def text_length(self, wish: str, lang: str) -> int | None:
        """Text tokens that a model was built for, from what is loaded or its folder; None where neither tells."""
        try:
            loaded, source = self.kept(wish, lang), Path(self.resolve(wish, lang))
        except Refused:
            return None
        if loaded is not None:
            from engine.request import text_length

            return text_length(loaded.pipe)
        try:
            config = json.loads((source / "transformer" / "config.json").read_text(encoding="utf-8"))
            return int(config["max_text_seq_length"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def fits(self, wish: str, lang: str) -> str:
        """One sentence on what the model would take here, from the files' headers alone."""
        source = Path(self.resolve(wish, lang))
        if not source.is_dir():
            return plain(lang, "lab.model.unknown_size")
        weights = sum(f.stat().st_size for f in source.rglob("*.safetensors"))
        inner = sum(f.stat().st_size for f in source.glob("transformer*/*.safetensors"))
        packed = weights - inner + inner * 9 / 32          # 4.5 bits of 16
        taken, free = {"weights": size(weights), "packed": size(packed)}, free_bytes()
        if free is None:
            said = plain(lang, "lab.model.size", **taken)
        else:
            key = "lab.model.fits" if free > weights * 1.3 else "lab.model.fits_not"
            said = plain(lang, key, **taken, free=size(free))
        cache = cache_bytes(source)
        return sentences(lang, said, plain(lang, "lab.model.cache", cache=size(cache)) if cache else "")


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


def free_bytes() -> int | None:
    """Memory free for a model: of the GPU where torch is loaded and has one, else of the machine; None where
    unknown."""
    torch = imported_torch()
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)


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
