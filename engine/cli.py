"""The command line: arguments in, one sentence out when something is wrong, never a traceback.

    python -m engine generate --prompt "…" --policy sixbit --seed 5 --out out.mp4 --trace run.parquet
    python -m engine generate --model … --image first.png --prompt "…"   from a picture (--video: from a clip)
    python -m engine compare            every preset, one table
    python -m engine calibrate          fit the predictor
    python -m engine quantize SRC DST   write a packed checkpoint
    python -m engine tune               find thresholds (with frontier and theory: `engine.cli_quality`)
    python -m engine bench              one step at the size of a real model

Exit codes: 0 done, 2 for a request or a model that cannot be served, 1 for anything unforeseen, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from engine.cli_bench import add_bench_parser
from engine.cli_inputs import add_inputs
from engine.cli_quality import EMBEDDED, add_parsers
from engine.files import is_text, shown
from engine.interrupt import patient_interrupts
from engine.settings import PRESETS, Policy


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        with patient_interrupts():
            return _run(_parser().parse_args(_readable(sys.argv[1:] if argv is None else argv)))
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    # Whatever a library raises, a person gets a sentence and a way to see more.
    except Exception as error:
        if os.environ.get("SIXBIT_DEBUG"):
            raise
        if not isinstance(error, (ValueError, RuntimeError, OSError, ImportError)):
            print(
                f"error: unexpected {type(error).__name__}: {_sentence(error)} (set SIXBIT_DEBUG=1 for the details)",
                file=sys.stderr,
            )
            return 1
        print(f"error: {_sentence(error)}", file=sys.stderr)
        return 2


def _run(given) -> int:
    # Deprecations inside the libraries are nothing that a person at this prompt could act on.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    from engine import commands

    run = getattr(given, "run", None) or getattr(commands, given.command)
    return run(given) or 0


def _readable(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments, or a ValueError for one that is no text: bytes that its encoding does not have arrive as halves of
    characters, at which one library or another would stumble after minutes of work."""
    for argument in arguments:
        if not is_text(argument):
            raise ValueError(
                f"The argument {shown(argument)} is no text in the encoding of this terminal; rename the file, or set "
                "a UTF-8 locale such as LC_ALL=C.UTF-8."
            )
    return arguments


def read_policy(given) -> Policy:
    """--policy (a preset's name, "auto" or a JSON file) with every --set FIELD=VALUE applied. Raises PolicyError."""
    name = given.policy
    if name == "auto":
        name = _suited(given)
    if name not in PRESETS and not name.lower().endswith(".json"):
        known = ", ".join(("auto", *PRESETS))
        raise ValueError(f"--policy must be one of {known}, or a policy file that ends in .json; got {shown(name)}.")
    policy = Policy.preset(name) if name in PRESETS else Policy.load(name)
    kinds = {field.name: type(getattr(Policy(), field.name)) for field in fields(Policy)}
    for change in given.set or ():
        field, found, text = change.partition("=")
        if not found or field not in kinds:
            raise ValueError(f"--set expects FIELD=VALUE with a field of {', '.join(kinds)}; got {change[:60]!r}.")
        policy = replace(policy, **{field: _value(field, kinds[field], text)})
    return policy


def _suited(given) -> str:
    from engine.advice import preset_for
    from engine.load import device_for

    return preset_for(device_for(given.device))


def _value(field: str, kind: type, text: str):
    if kind is str:
        return text
    if kind is bool:
        words = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() not in words:
            raise ValueError(f"{field} must be true or false; got {shown(text)}.")
        return words[text.lower()]
    if text.lower() == "none":
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'a file'}: {error.strerror}"
    return text if len(text) <= 1200 else text[:1197] + "…"


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one sentence and leaves the list of every option to --help."""

    def error(self, message: str):
        kinds = {"int": "a whole number", "float": "a number"}
        message = re.sub(
            r"^argument (\S+): invalid (int|float) value: (.*)$",
            lambda found: f"{found[1]} must be {kinds[found[2]]}; got {shown(found[3].strip(chr(39)))}", message,
        )  # fmt: skip
        message = message.removeprefix("argument ")
        self.exit(2, f"error: {message}; `{self.prog} --help` lists what there is.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m engine",
        description="Mixed-precision, cached and purified video diffusion, every decision recorded.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("generate", help="make one video")
    _model(run)
    run.add_argument("--prompt", required=True, help="what the video shows")
    run.add_argument("--negative-prompt", help="what it should not show (takes effect at guidance above 1)")
    add_inputs(run)
    run.add_argument(
        "--policy", default="auto", metavar="PRESET|FILE",
        help=f"{', '.join(PRESETS)}, a policy file that ends in .json, or auto: sixbit where 4 bits are native "
        "(Blackwell), else int8_tdc",
    )  # fmt: skip
    run.add_argument("--set", action="append", metavar="FIELD=VALUE", help="change one field of the policy")
    run.add_argument("--seed", type=int, help="whole number from 0; random and told if left out")
    _settings(run)
    run.add_argument("--height", type=int, help="pixels")
    run.add_argument("--width", type=int, help="pixels")
    run.add_argument("--frames", type=int)
    run.add_argument("--out", type=Path, default=Path("out.mp4"), help="the video (default: out.mp4)")
    run.add_argument("--trace", type=Path, help="also write every decision, as Parquet")
    _calibration(run)
    run.add_argument("--probe", action="store_true", help="measure every signal (several times slower)")

    table = commands.add_parser("compare", help="run every preset, print one table")
    _model(table)
    table.add_argument("--prompt", action="append", help="may be given several times; default: drawn at random")
    table.add_argument("--prompts", type=int, default=4, metavar="N", help="how many to draw (default: 4)")
    add_inputs(table)
    table.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS), metavar="PRESET")
    table.add_argument("--seed", type=int, default=0)
    _settings(table)
    _calibration(table)
    table.add_argument("--csv", type=Path, help="also write one row per run")

    fit = commands.add_parser("calibrate", help="fit the predictor of the NVFP4 error")
    _model(fit)
    fit.add_argument("--prompt", action="append", help="may be given several times")
    fit.add_argument("--prompts", type=int, default=8, metavar="N", help="how many to draw (default: 8)")
    add_inputs(fit)
    fit.add_argument("--seed", type=int, default=1000)
    _settings(fit)
    fit.add_argument(
        "--sensitivity", action="store_true",
        help="also measure how much the model's output minds 4 bits in each layer group, for policies that weigh by it "
        "(dmpq_sensitive): some hundred evaluations more",
    )
    fit.add_argument("--out", type=Path, help="where to write it; default: the user's cache, where runs look first")

    pack = commands.add_parser("quantize", help="write a packed checkpoint that never needs the 16-bit weights")
    pack.add_argument("src", metavar="SRC", help="a diffusers folder or hub id")
    pack.add_argument("dst", metavar="DST", type=Path, help="a new folder")
    pack.add_argument(
        "--adaln", choices=("w4a16", "stock"), default="w4a16", help="pack the AdaLN linears too (default) or not"
    )
    pack.add_argument(
        "--text-encoder", choices=("stock", "w4a16"), default="stock",
        help="pack a T5 text encoder too, or not (default)",
    )  # fmt: skip

    add_parsers(commands)
    add_bench_parser(commands)
    return parser


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default=str(EMBEDDED),
        help="a diffusers folder, packed checkpoint or hub id (default: the small one)",
    )  # fmt: skip
    parser.add_argument("--device", help="cuda, cuda:1, cpu (default: what is there)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="default: what the hardware does well"
    )


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, help="denoising steps (default: the model's own)")
    parser.add_argument("--guidance", type=float, help="guidance scale (default: the model's own)")


def _calibration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE",
        help="the predictor's lines, as calibrate --out writes them (default: from the user's cache, else beside the "
        "model)",
    )  # fmt: skip
