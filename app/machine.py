"""What this machine is, in words for the page. Asks torch only where it has been imported already."""

from __future__ import annotations

import os
import re
import sys
from types import ModuleType
from typing import Any

from app.i18n import plain


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def imported_torch() -> ModuleType | None:
    """torch, if it is in memory whole: while another thread imports it, its parts are not all there."""
    torch = sys.modules.get("torch")
    half = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if half else torch


def chip(zero_gpu: bool = False) -> dict[str, Any]:
    """The machine chip: {"machine": key of a text `lab.machine.*`, "machine_values": its values}.

    Without torch in memory this is the CPU's answer, so that the first paint imports nothing.
    """
    torch = imported_torch()
    if zero_gpu:
        return {"machine": "zero", "machine_values": {}}
    if torch is None or not torch.cuda.is_available():
        return {"machine": "cpu", "machine_values": {"cores": cores()}}
    native = torch.cuda.get_device_capability()[0] >= 10
    return {"machine": "cuda_native" if native else "cuda", "machine_values": {"name": torch.cuda.get_device_name()}}


def spoken(described: str, lang: str) -> str:
    """What `describe` said, here or where a recording was made, in the page's language; a GPU's name stays."""
    found = re.fullmatch(r"(\d+)-core CPU", described)
    return plain(lang, "lab.machine.cores", cores=found[1]) if found else described


def describe() -> str:
    """One phrase for a measurement's label: "2-core CPU" or the GPU's name."""
    torch = imported_torch()
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{cores()}-core CPU"
