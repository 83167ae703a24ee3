"""Train the model that ships in ``firelane/models/embedded`` and write it there.

Run from the repository's root: ``python -m tools.train_embedded --out DIR --work DIR --steps N``.
A run that was stopped goes on from its checkpoint; ``--export-only`` writes what the checkpoint
holds. The work is counted in steps, or in CPU minutes that a short measurement turns into steps, so
a pause costs nothing.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tools.embedded.batches import Stream, build_streams, validation_streams
from tools.embedded.corpus import Corpus, load_corpus
from tools.embedded.export import export
from tools.embedded.tokenizer import train_tokenizer
from tools.embedded.trainer import Recipe, Trainer, build_model, planned_steps, validation_loss

CHECKPOINT = "checkpoint.pt"
PROBE_LENGTH = 1000
MEASURED_STEPS = 12
SKIPPED_STEPS = 4


def main() -> None:
    """Prepare the data, train or resume, and export."""
    arguments = _parse()
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus(arguments.seed)
    tokenizer = _tokenizer(corpus, arguments.work / "tokenizer.json")
    streams = build_streams(corpus, tokenizer, arguments.seed)
    recipe = _recipe(streams, arguments)
    trainer = _trainer(streams, recipe, arguments.work / CHECKPOINT)
    if trainer.resume():
        print(f"resumed at step {trainer.step}", flush=True)
    if not arguments.export_only:
        held_out = validation_streams(corpus, tokenizer, recipe.seed)
        report = partial(_report, held_out)
        trainer.run(recipe.steps, report, arguments.every)
    export(trainer, corpus, tokenizer, arguments.threads, arguments.out)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="model directory to write")
    parser.add_argument("--work", type=Path, default=Path("build/embedded"), help="tokenizer and checkpoint")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--steps", type=int, help="length of the run in steps")
    budget.add_argument("--minutes", type=float, help="length in CPU minutes per thread")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=150, help="steps between checkpoints")
    parser.add_argument("--export-only", action="store_true", help="do not train")
    return parser.parse_args()


def _tokenizer(corpus: Corpus, path: Path) -> Tokenizer:
    if not path.exists():
        train_tokenizer(d.text for d in corpus.train).save(str(path))
    return Tokenizer.from_file(str(path))


def _trainer(streams: tuple[Stream, ...], recipe: Recipe, checkpoint: Path) -> Trainer:
    return Trainer(build_model(recipe.seed), recipe, streams, checkpoint)


def _recipe(streams: tuple[Stream, ...], arguments: argparse.Namespace) -> Recipe:
    """The recipe of the length asked for; a run that has begun keeps the length it began with."""
    recipe = Recipe(steps=arguments.steps or PROBE_LENGTH, seed=arguments.seed)
    if arguments.minutes is None:
        return recipe
    steps = planned_steps(arguments.work / CHECKPOINT)
    if steps is None:
        probe = _trainer(streams, recipe, arguments.work / "probe.pt")
        steps = _affordable_steps(probe, arguments.minutes * 60 * arguments.threads)
    print(f"budget: --steps {steps} gives these weights again", flush=True)
    return replace(recipe, steps=steps)


def _affordable_steps(probe: Trainer, cpu_seconds: float) -> int:
    """Run a few steps of a throwaway model; return how many steps the CPU time allows."""
    marks: list[float] = []
    probe.run(MEASURED_STEPS, lambda now: marks.append(now.cpu_seconds), SKIPPED_STEPS)
    per_step = (marks[-1] - marks[0]) / (MEASURED_STEPS - SKIPPED_STEPS)
    return max(1, int(cpu_seconds / per_step))


def _report(held_out: tuple[Stream, ...], now: Trainer) -> None:
    """Print one line: progress, CPU time, losses."""
    losses = [f"{s.name} {validation_loss(now.model, s, rows=32):.4f}" for s in held_out]
    print(
        f"{time.strftime('%H:%M:%S')} step {now.step}/{now.recipe.steps} "
        f"cpu {now.cpu_seconds / 60:.1f} min train {now.recent_loss:.4f} "
        f"held out: {' '.join(losses)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
