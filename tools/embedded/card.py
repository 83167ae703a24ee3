"""The model card, filled in from what the run measured."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tools.embedded.batches import LONG_WINDOW_SHARE, SHARES
from tools.embedded.corpus import MAX_FILE_BYTES
from tools.embedded.tokenizer import VOCABULARY_SIZE
from tools.embedded.trainer import Recipe

SAMPLE_TOKENS = 128
TEMPLATE = Path(__file__).with_name("card.md")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The run's figures that the card states."""

    parameters: int
    train_files: int
    validation_files: int
    corpus_bytes: int
    train_tokens: dict[str, int]
    validation_tokens: dict[str, int]
    steps: int
    cpu_minutes: float
    train_loss: float
    held_out: dict[str, float]
    samples: tuple[tuple[str, str], ...]
    threads: int


def card(recipe: Recipe, measured: Measured) -> str:
    """The whole text of ``MODEL_CARD.md``."""
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.format(**_data_fields(measured), **_run_fields(recipe, measured))


def _data_fields(measured: Measured) -> dict[str, object]:
    """Return the fields that describe the run's data."""
    return {
        "parameters": measured.parameters / 1e6,
        "python": platform.python_version(),
        "max_file": MAX_FILE_BYTES,
        "files": measured.train_files + measured.validation_files,
        "validation_files": measured.validation_files,
        "bytes": measured.corpus_bytes,
        "streams": "\n".join(
            f"| {name} | {count:,} | {SHARES[name]:.0%} |" for name, count in measured.train_tokens.items()
        ),
        "code_tokens": measured.validation_tokens["code"],
        "chat_tokens": measured.validation_tokens["chats"],
        "long": LONG_WINDOW_SHARE,
        "uniform": math.log(VOCABULARY_SIZE),
    }


def _run_fields(recipe: Recipe, measured: Measured) -> dict[str, object]:
    """Return the fields that describe how the run went and what came out."""
    return {
        "steps": measured.steps,
        "planned": recipe.steps,
        "tokens_per_step": recipe.tokens_per_step,
        "trained": measured.steps * recipe.tokens_per_step / 1e6,
        "rate": recipe.learning_rate,
        "warmup": recipe.warmup_steps,
        "final": recipe.final_fraction,
        "decay": recipe.weight_decay,
        "clip": recipe.clip_norm,
        "seed": recipe.seed,
        "threads": measured.threads,
        "machine": _processor(),
        "cpu_minutes": measured.cpu_minutes,
        "train_loss": measured.train_loss,
        "losses": "\n".join(f"| held-out {name} | {loss:.3f} |" for name, loss in measured.held_out.items()),
        "sample_tokens": SAMPLE_TOKENS,
        "samples": "\n\n".join(f"```text\n{prompt}>>>{made}\n```" for prompt, made in measured.samples),
        **{name: version(name) for name in ("torch", "transformers", "tokenizers")},
    }


def _processor() -> str:
    """The processor's name, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
