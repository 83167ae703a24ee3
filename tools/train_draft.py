"""Train a small draft model for a target: a Llama of the same vocabulary, distilled from the target.

Run from the repository's root: ``python -m tools.train_draft --target DIR --text DIR --out DIR --steps N``.
The target is any checkpoint that transformers loads as a causal language model with rotary positions; it
stays as it is. What is written is an ordinary checkpoint, with the target's tokenizer files beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.drafting.acceptance import runs
from tools.drafting.arguments import add_options, open_target, read_material
from tools.drafting.card import Run, draft_card
from tools.drafting.export import save_draft
from tools.drafting.llama_draft import (
    DraftShape,
    check_draft,
    distillation_loss,
    load_draft,
    make_draft,
    matches,
)
from tools.drafting.session import Drafter, train_and_write


def main() -> None:
    """Prepare the rows, train, measure, and write the model."""
    arguments = _parse()
    target, places, shape = open_target(arguments), arguments.places, _shape(arguments)
    check_draft(target, shape)
    material = read_material(target, arguments)
    model = make_draft(target, shape, arguments.seed)
    if arguments.start_from:
        load_draft(model, arguments.start_from)
    drafter = Drafter(
        model=model,
        loss_of=lambda rows: distillation_loss(model, target, rows),
        # The model reads the drawn token before it drafts: its first draft stands one row later.
        right=lambda rows: runs(matches(model, rows)[:, 1:], places),
    )

    def fill(made: Path, run: Run) -> None:
        save_draft(model, target, made)
        draft_card(model, run, made / "MODEL_CARD.md")

    train_and_write(drafter, material, arguments, fill)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    add = parser.add_argument
    add("--hidden", type=int, default=128, help="hidden size, at most the target's")
    add("--layers", type=int, default=2)
    add("--heads", type=int, default=4, help="query heads")
    add("--kv-heads", type=int, default=2, help="key and value heads")
    add("--intermediate", type=int, default=512, help="width of the MLP")
    return parser.parse_args()


def _shape(arguments: argparse.Namespace) -> DraftShape:
    return DraftShape(
        hidden=arguments.hidden,
        layers=arguments.layers,
        heads=arguments.heads,
        kv_heads=arguments.kv_heads,
        intermediate=arguments.intermediate,
    )


if __name__ == "__main__":
    main()
