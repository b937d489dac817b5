"""The quantized engine: `load`, `attach`, `generate`, `record`, and the torch-free core `Policy`, `replay`, `Trace`.

Names are resolved on first use (PEP 562), so that `from engine import Policy, replay, Trace`, and with it the
first paint of the app, never imports torch.
"""

import sys
from importlib import import_module
from types import ModuleType

_HOME = {
    "Policy": "policy",
    "PRESETS": "policy",
    "Calibration": "records",
    "attach": "attach",
    "record": "run",
    "Trace": "trace",
    "TraceError": "trace",
    "replay": "replay",
    "load": "load",
    "generate": "stream",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'engine' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"engine.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Engine(ModuleType):
    """Keeps `engine.replay` the function: importing the file of the same name would rebind it to the module."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Engine
