"""The options that both tools have, and what they stand for."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tools.drafting.continuations import Asking, continuations
from tools.drafting.loop import Plan
from tools.drafting.target import Target, load_target
from tools.drafting.text import Text, Tokens, split_files, text_files, tokenize


@dataclass(frozen=True, slots=True)
class Material:
    """The inputs of a run: the target, the text, and what the target wrote behind it.

    ``held_out`` has what it wrote behind held-out text, by how it drew: int64 [rows, length] each.
    """

    target: Target
    text: Text
    written: Tokens
    held_out: dict[str, Tokens]
    prompt: int
    plan: Plan


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to train on, and for how long."""
    add = parser.add_argument
    add("--target", type=Path, required=True, help="checkpoint directory of the model to draft for")
    add("--text", type=Path, nargs="+", required=True, help="UTF-8 files, or directories of them")
    add("--held-out", type=Path, nargs="+", help="files to measure on; else 4%% of the text, by name")
    add("--out", type=Path, required=True, help="directory to write")
    add("--work", type=Path, default=Path("build/drafting"), help="keeps what the target wrote")
    add("--start-from", type=Path, help="directory that this tool has written: train it on")
    add("--steps", type=int, required=True, help="training steps")
    add("--minutes", type=float, default=math.inf, help="end sooner, after these minutes of training")
    add("--rows", type=int, default=6, help="windows of a step")
    add("--length", type=int, default=384, help="tokens of a window")
    add("--prompt", type=int, default=128, help="tokens of a window that the target is to continue")
    add("--continuations", type=int, default=1024, help="windows that the target writes; 0: text alone")
    add("--written", type=float, default=0.5, help="their share of the training windows")
    add("--temperature", type=float, default=1.0, help="of every second batch of them; others are greedy")
    add("--measured", type=int, default=64, help="held-out windows to measure on")
    add("--places", type=int, default=4, help="tokens drafted in a row")
    add("--learning-rate", type=float, default=3e-3)
    add("--seed", type=int, default=7)
    add("--threads", type=int, default=1)
    add("--device", default="cpu", help="cpu, or a device of torch")
    add("--every", type=int, default=50, help="steps between reports")


def open_target(arguments: argparse.Namespace) -> Target:
    """Load the target. Raises SystemExit where it cannot be read, and for options that make no sense."""
    _check(arguments)
    torch.set_num_threads(arguments.threads)
    target = load_target(arguments.target, arguments.device)
    most = target.config.max_position_embeddings
    if arguments.length > most:
        raise SystemExit(f"--length {arguments.length} is more than the target's {most} positions")
    if "rope_theta" not in (target.config.rope_parameters or {}):
        raise SystemExit("the target has no rope settings that hold for all its layers")
    return target


def read_material(target: Target, arguments: argparse.Namespace) -> Material:
    """Read the text, and let the target write, which takes a while.

    Raises SystemExit for text that cannot be read.
    """
    files = text_files(arguments.text)
    files, apart = (files, text_files(arguments.held_out)) if arguments.held_out else split_files(files)
    text = tokenize(files, target.tokenizer, arguments.length, arguments.work)
    held_out = tokenize(apart, target.tokenizer, arguments.length, arguments.work)
    asking = _asking(arguments, arguments.continuations, arguments.temperature, arguments.seed)
    written = continuations(target, text, asking, arguments.work) if asking.rows else text.tokens[:0]
    measured = _held_out(target, held_out, arguments)
    return Material(target, text, written, measured, arguments.prompt, _plan(arguments))


def _held_out(target: Target, text: Text, arguments: argparse.Namespace) -> dict[str, Tokens]:
    """Greedy continuations of held-out text, and drawn ones where the training rows have such."""
    made: dict[str, Tokens] = {}
    for temperature in sorted({0.0, arguments.temperature}):
        name = f"temperature {temperature:g}" if temperature else "greedy"
        asking = _asking(arguments, arguments.measured, temperature, arguments.seed)
        made[name] = continuations(target, text, replace(asking, every=1), arguments.work)
    return made


def _check(arguments: argparse.Namespace) -> None:
    for name in ("steps", "rows", "measured", "places", "threads", "every"):
        if getattr(arguments, name) < 1:
            raise SystemExit(f"--{name} must be at least 1")
    if arguments.continuations < 0 or not 0 <= arguments.written <= 1 or arguments.temperature < 0:
        raise SystemExit("--continuations and --temperature start at 0, --written is from 0 to 1")
    if not (arguments.minutes > 0 and arguments.learning_rate > 0):
        raise SystemExit("--minutes and --learning-rate must be more than 0")
    if not 1 < arguments.prompt < arguments.length - 2 * arguments.places:
        raise SystemExit("--prompt must be from 2 to less than --length minus twice --places")
    if arguments.start_from and not (arguments.start_from / "model.safetensors").is_file():
        raise SystemExit(f"--start-from {arguments.start_from}: no model.safetensors is there")
    if arguments.out.exists() and not arguments.out.is_dir():
        raise SystemExit(f"{arguments.out} is no directory")


def _asking(arguments: argparse.Namespace, rows: int, temperature: float, seed: int) -> Asking:
    return Asking(
        rows=rows, prompt=arguments.prompt, length=arguments.length, temperature=temperature, seed=seed
    )


def _plan(arguments: argparse.Namespace) -> Plan:
    return Plan(
        steps=arguments.steps,
        minutes=arguments.minutes,
        rows=arguments.rows,
        length=arguments.length,
        written=arguments.written,
        learning_rate=arguments.learning_rate,
        seed=arguments.seed,
    )
