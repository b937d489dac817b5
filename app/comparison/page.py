"""Compare as plain JSON values: controls, one figure, tables and sentences in the visitor's language."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from app.comparison import points as measured
from app.comparison.cells import cell, interval, method_name, number, quiet
from app.comparison.findings import sensitivity_card, settings_table
from app.comparison.headline import headline
from app.comparison.notes import spoken
from app.comparison.speed import Benchmark
from app.figures import compare_frontier
from app.i18n import plain, resolve, sentences, text
from app.lessons import controls
from app.lessons.course import finite
from app.lessons.glossary import paper
from app.links import into_lab
from engine.settings import PRESETS
from engine.trace import Trace


class Findings(NamedTuple):
    """What else was measured, each None where it was not; `run` is the recorded run that the layers are held
    against."""

    sensitivity: pd.DataFrame | None = None
    settings: pd.DataFrame | None = None
    run: Trace | None = None


SHOWN = ("psnr", "prompt_accuracy", "ssim", "flicker", "bits", "bits_computed", "skipped", "seconds")
SPEED_COLUMNS = ("method", "skipped", "step", "faster", "peak", "weights", "cache", "bits", "bits_computed")
LONGEST_TABLE = 200


NO_FINDINGS = Findings()


def page(
    sweep: measured.Sweep, benchmarks: list[Benchmark], lang: Any, sent: Any, findings: Findings = NO_FINDINGS
) -> dict[str, Any]:
    """`sent`: {"quality": one of QUALITIES, "cost": one of COSTS}; anything else takes the defaults."""
    lang = resolve(lang if isinstance(lang, str) else None)
    wish = sent if isinstance(sent, Mapping) else {}
    quality = controls.choice(wish, "quality", measured.QUALITIES, "psnr")
    cost = controls.choice(wish, "cost", measured.COSTS, "seconds")
    found = measured.points(sweep, quality, cost)

    def say(key: str, **values: Any) -> str:
        return text(lang, f"compare.{key}", **values)

    names = {method: method_name(lang, method) for method in dict.fromkeys(found.table["method"])}
    labels = {"quality": say(quality), "cost": say(cost), "better": say("better"), "empty": say("frontier_empty"),
              "reference": say("untouched")}
    if cost == "seconds":
        names |= {name: plain(lang, "compare.simulated_name", name=names[name]) for name in names
                  if measured.simulated(name, sweep.timed_on)}  # fmt: skip
    return finite({
        "lang": lang, "title": say("title"), "lead": say("lead"),
        "headline": headline(measured.points(sweep, "psnr", "skipped"), sweep.rows, lang, say) if sweep.prompts else [],
        "frontier": {
            "title": say("frontier"), "alt": say("frontier_alt"),
            "lead": frontier_lead(sweep, lang, say),
            "controls": [
                controls.chips("quality", say("quality"), quality,
                [(q, say(f"short_{q}")) for q in measured.QUALITIES]),
                controls.chips("cost", say("cost"), cost, [(c, say(f"short_{c}")) for c in measured.COSTS]),
            ] if sweep.prompts else [],
            "figure": compare_frontier.frontier(found, names, labels),
            "dots": [link_of(row.method, row.setting, lang) for row in found.table.itertuples()],
            "verdict": verdict(found, say), "no_point": say("no_point"),
            "table": dots_table(found, sweep, names, lang, say),
        },
        "ablation": ablation_table(sweep, lang, say),
        "speed": [speed_table(benchmark, lang, say) for benchmark in benchmarks],
        "speed_title": say("speed"), "speed_missing": "" if benchmarks else say("speed_missing"),
        "sensitivity": sensitivity_card(findings.sensitivity, findings.run, lang),
        "settings": settings_table(findings.settings, lang),
        "notes": [say("honest"), say("paper")], "paper": paper(lang),
    })  # fmt: skip


def frontier_lead(sweep: measured.Sweep, lang: str, say) -> str:
    """How the dots were made, and on what the seconds were taken."""
    if not sweep.prompts:
        return say("frontier_missing")
    device = {"cuda": "GPU", "cpu": "CPU"}.get(sweep.timed_on, sweep.timed_on)
    return sentences(
        lang,
        say("frontier_lead", prompts=sweep.prompts),
        say("timed", device=device, threads=sweep.threads) if device else "",
    )


def verdict(found: measured.Points, say) -> str:
    """How many of our settings no peer beats; nothing without peers to compare with."""
    ours = found.table["ours"].to_numpy(bool)
    if not ours.any() or ours.all():
        return ""
    good = int(measured.unbeaten(found)[ours].sum())
    return say("verdict", good=good, all=int(ours.sum())) if good else say("verdict_none")


def link_of(method: str, setting: str, lang: str) -> dict[str, Any] | None:
    """What opens a point of ours in the Lab; None for a peer's."""
    policy = measured.policy_of(method, setting)
    return None if policy is None else into_lab(policy, lang)


def costing(row: Any, cost: str, sweep: measured.Sweep, say) -> dict[str, Any]:
    """A point's cost; seconds of simulated arithmetic in grey, with the word for it."""
    shown = cell(number(cost, row.cost))
    return quiet(shown, say) if cost == "seconds" and measured.simulated(row.method, sweep.timed_on) else shown


def dots_table(found: measured.Points, sweep: measured.Sweep, names: dict[str, str], lang: str, say) -> dict[str, Any]:
    """Every dot as a row: the keyboard's and the screen reader's way to it."""
    columns = [
        say("col_method"),
        say("col_setting"),
        say(f"short_{found.quality}"),
        say(f"short_{found.cost}"),
        say("col_runs"),
        "",
    ]
    rows = [
        [cell(names[row.method]), cell(setting_words(row.method, row.setting, lang, say)),
         interval(found.quality, (row.mean, row.low, row.high)), costing(row, found.cost, sweep, say),
         cell(str(row.runs)),
         {"open": link_of(row.method, row.setting, lang), "text": say("open"), "else": say("peer")}]
        for row in found.table.head(LONGEST_TABLE).itertuples()
    ]  # fmt: skip
    return {"title": say("table"), "columns": columns, "rows": rows}


def ablation_table(sweep: measured.Sweep, lang: str, say) -> dict[str, Any]:
    """The presets in the paper's order."""
    table = sweep.ablation if sweep.prompts else pd.DataFrame()
    body = []
    for _, row in table.iterrows():
        link = link_of(row["method"], row["setting"], lang)
        cells = {name: interval(name, row[name], say("identical")) for name in SHOWN}
        if measured.simulated(row["method"], sweep.timed_on):
            cells["seconds"] = quiet(cells["seconds"], say)
        body.append([cell(method_name(lang, row["method"])), *cells.values(),
                     {"open": link, "text": say("open"), "else": ""}])  # fmt: skip
    columns = [say("col_method"), *[say(f"short_{name}") for name in SHOWN], ""]
    return {"title": say("ablation"), "lead": say("ablation_lead") if body else say("frontier_missing"),
            "columns": columns, "rows": body}  # fmt: skip


def speed_table(benchmark: Benchmark, lang: str, say) -> dict[str, Any]:
    """One benchmark file and device."""
    columns = [say("col_method"), say("short_skipped"), say("col_step"), say("col_faster"), say("col_peak"),
               say("col_weights"), say("col_cache"), say("short_bits"), say("short_bits_computed")]  # fmt: skip
    body = [
        [noted(method_name(lang, str(row.method)), row, lang), cell(number("skipped", row.skipped)),
         *pace(row, benchmark, say), cell(number("gb", row.peak_gb)),
         cell(number("gb", row.weights_gb)), cell(number("gb", row.cache_gb)), cell(number("bits", row.bits)),
         cell(number("bits_computed", row.bits_computed))]
        for row in benchmark.rows.head(LONGEST_TABLE).itertuples()
    ]  # fmt: skip
    return {
        "lead": say("speed_lead", model=benchmark.model, device=benchmark.device or "?"),
        "columns": columns,
        "rows": body,
    }


def pace(row: Any, benchmark: Benchmark, say) -> list[dict[str, Any]]:
    """Seconds a step and the speed-up; simulated arithmetic shows its seconds in grey and claims no speed-up."""
    seconds = cell(number("step", row.seconds_per_step))
    if measured.simulated(str(row.method), benchmark.device):
        return [quiet(seconds, say), cell("–")]
    return [seconds, cell(number("faster", row.faster))]


def noted(name: str, row: Any, lang: str) -> dict[str, str]:
    """A method's cell with the benchmark's own note under it."""
    note = getattr(row, "notes", None)
    return {**cell(name), **({"small": spoken(note, lang)} if isinstance(note, str) else {})}


def setting_words(method: str, setting: str, lang: str, say) -> str:
    """A setting's own parameters, without those that equal the preset's."""
    policy = measured.policy_of(method, setting)
    if policy is not None:
        preset = PRESETS[method].to_dict()
        given = {k: v for k, v in policy.to_dict().items() if v != preset[k] and k != "tuned_steps"}
        if not given:
            return say("own")
    else:
        try:
            given = json.loads(setting)
        except ValueError:
            given = setting
    words = ", ".join(f"{k} {v}" for k, v in given.items()) if isinstance(given, dict) else str(given)
    return text(lang, "learn.plain", value=words[:200])
