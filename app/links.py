"""Links that open a policy in the Lab: what the page's script needs, and an address for a tab of its own."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from engine.settings import Policy


def into_lab(policy: Policy, lang: str, source: str = "") -> dict[str, Any]:
    """{"cfg": what the Lab opens, "href": the same as the page's query}; `source` names the run to open it on."""
    cfg = {"policy": policy.to_dict(), **({"source": source} if source else {})}
    query = {"cfg": json.dumps(cfg, separators=(",", ":")), "lang": "zh" if lang == "zh-CN" else "en"}
    return {"cfg": cfg, "href": "?" + "&".join(f"{name}={quote(value)}" for name, value in query.items())}
