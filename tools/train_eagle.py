"""Train an EAGLE-3 head for a target and write it in the layout that SpecForge publishes.

Run from the repository's root: ``python -m tools.train_eagle --target DIR --text DIR --out DIR --steps N``.
The target is any checkpoint that transformers loads as a causal language model with rotary positions; it
stays as it is. It continues prompts from the text first, since a head has to foresee what the target writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.drafting.arguments import add_options, open_target, read_material
from tools.drafting.card import Run, head_card
from tools.drafting.eagle_training import (
    HeadShape,
    check_head,
    default_layer_ids,
    draft,
    frequent_tokens,
    load_head,
    make_head,
)
from tools.drafting.export import save_head
from tools.drafting.session import Drafter, train_and_write
from tools.drafting.target import Target


def main() -> None:
    """Prepare the rows, train, measure, and write the head."""
    arguments = _parse()
    target, places = open_target(arguments), arguments.places
    shape = _shape(target, arguments)
    check_head(target, shape)
    material = read_material(target, arguments)
    counted = material.written if len(material.written) else material.text.tokens
    draft_ids = frequent_tokens(counted, len(target.embedding), shape.draft_vocabulary)
    head = make_head(target, shape, draft_ids, arguments.seed)
    if arguments.start_from:
        load_head(head, arguments.start_from)
    drafter = Drafter(
        model=head,
        loss_of=lambda rows: draft(head, target, rows, places).loss,
        right=lambda rows: draft(head, target, rows, places).right,
    )

    def fill(made: Path, run: Run) -> None:
        save_head(head, target, made)
        head_card(head, run, made / "MODEL_CARD.md")

    train_and_write(drafter, material, arguments, fill)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    add = parser.add_argument
    add("--layers", type=int, nargs=3, help="read the streams into these layers (else 2, n/2, n-3)")
    add("--draft-vocabulary", type=int, default=32000, help="so many tokens can be drafted, at most")
    add("--intermediate", type=int, help="width of the head's MLP (else the target's)")
    add("--heads", type=int, help="query heads (else the target's)")
    add("--kv-heads", type=int, help="key and value heads (else the target's)")
    return parser.parse_args()


def _shape(target: Target, arguments: argparse.Namespace) -> HeadShape:
    layer_ids = arguments.layers or default_layer_ids(target.config.num_hidden_layers)
    return HeadShape(
        layer_ids=tuple(layer_ids),
        draft_vocabulary=min(arguments.draft_vocabulary, len(target.embedding)),
        intermediate=arguments.intermediate,
        heads=arguments.heads,
        kv_heads=arguments.kv_heads,
    )


if __name__ == "__main__":
    main()
