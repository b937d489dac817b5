"""How good is a clip: against a reference (picture), by itself (flow), against its own prompt (scene).

Frames are uint8 (F, H, W, 3) RGB everywhere. Nothing here needs a network or downloads one.
"""
import importlib

_HOMES = {
    "psnr": "picture",
    "ssim": "picture",
    "latent_error": "picture",
    "flicker": "flow",
    "warping_error": "flow",
    "read_scene": "scene",
    "prompt_accuracy": "scene",
    "Reading": "scene",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
