"""The cards of heads and draft models: what they were trained on, and what was measured."""

from __future__ import annotations

import argparse
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaForCausalLM

from tools.drafting.acceptance import Acceptance
from tools.drafting.arguments import Material
from tools.drafting.eagle import EagleHead
from tools.drafting.loop import Progress

LINE = 118
FRONT = """---
library_name: {library}
tags: [speculative-decoding, {tag}]
---

# {title}

{what}
"""

BODY = """
## Training

| | |
|---|---|
| text | {tokens:,} tokens, and {written:,} rows of {length} tokens that the target wrote |
| share of rows that the target wrote | {share:.0%} |
| how it drew | greedily; in every second batch at temperature {temperature:g} |
| steps | {steps} of {planned}, each of {rows} rows of {length} tokens: {trained:.2f} million tokens |
| rates | {rate:g} at most, warm-up, cosine; Muon for matrices of layers, AdamW for the rest |
| time | {minutes:.1f} minutes on {device}, threads: {threads} |
| loss | {first:.3f} nats at the first step, {last:.3f} at the end (running mean){summed} |

```bash
python -m tools.{tool} {command}
```

## Measured

The target continues {prompt} tokens of held-out text up to {length}, {measured} times; {places} tokens are
drafted at each step, the likeliest ones. Tokens a step count the one that the target draws. The share of
right tokens at a place is that over all positions, with the right tokens before it. Computed with bf16
products outside of any engine.

| the target draws | tokens a step | right at place {numbers} |
|---|---:|---:|
{accepted}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The fields of a card's second half."""

    fields: dict[str, object]

    @staticmethod
    def of(
        arguments: argparse.Namespace, material: Material, done: Progress, measured: dict[str, Acceptance]
    ) -> Run:
        """Gather what a run was told and what came of it."""
        plan = material.plan
        told = ("temperature", "device", "threads", "prompt", "places")
        return Run(
            {
                **{name: getattr(arguments, name) for name in told},
                "tokens": len(material.text.tokens),
                "written": len(material.written),
                "share": plan.written if len(material.written) else 0.0,
                "length": plan.length,
                "rows": plan.rows,
                "steps": done.step,
                "planned": plan.steps,
                "trained": done.step * plan.rows * plan.length / 1e6,
                "rate": plan.learning_rate,
                "minutes": done.seconds / 60,
                "first": done.first_loss,
                "last": done.loss,
                "measured": arguments.measured,
                "numbers": ", ".join(str(place + 1) for place in range(arguments.places)),
                "accepted": "\n".join(_line(name, found) for name, found in measured.items()),
                "command": _command(arguments),
            }
        )


def head_card(head: EagleHead, run: Run, path: Path) -> None:
    """Write the card of an EAGLE-3 head."""
    count = sum(p.numel() for p in head.parameters()) / 1e6
    config = head.config
    streams = ", ".join(map(str, config.eagle_aux_hidden_state_layer_ids))
    what = (
        f"An EAGLE-3 head of {count:.2f} million parameters. It reads the target's residual streams into the "
        f"layers {streams} and drafts {config.draft_vocab_size:,} of the {config.vocab_size:,} tokens; "
        "the embedding is the target's."
    )
    front = FRONT.format(library="safetensors", tag="eagle3", title="EAGLE-3 head", what=_paragraph(what))
    summed = ", summed over the drafted tokens, each counted 0.8 times as much as the one before"
    path.write_text(front + BODY.format(tool="train_eagle", summed=summed, **run.fields), encoding="utf-8")


def draft_card(model: LlamaForCausalLM, run: Run, path: Path) -> None:
    """Write the card of a draft model."""
    config = model.config
    count, tied = model.num_parameters() / 1e6, model.get_input_embeddings().weight.numel() / 1e6
    what = (
        f"A Llama of {count:.2f} million parameters, {tied:.2f} million of them in the tied embedding: "
        f"hidden size {config.hidden_size}, {config.num_hidden_layers} layers, intermediate size "
        f"{config.intermediate_size}, {config.num_attention_heads} query, {config.num_key_value_heads} key "
        f"and value heads of {config.head_dim}. It has the target's vocabulary and was distilled from it."
    )
    front = FRONT.format(library="transformers", tag="draft", title="Draft model", what=_paragraph(what))
    path.write_text(front + BODY.format(tool="train_draft", summed="", **run.fields), encoding="utf-8")


def _line(name: str, found: Acceptance) -> str:
    places = ", ".join(f"{share:.0%}" for share in found.by_place)
    return f"| {name} | {found.tokens_a_step:.2f} | {places} |"


def _command(arguments: argparse.Namespace) -> str:
    """The options as they were given or left: enough to run the tool again."""
    told: list[str] = []
    for name, value in vars(arguments).items():
        if value is None or value == math.inf:
            continue
        shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        # No line ends between an option and its value.
        told.append(f"--{name.replace('_', '-')} {shown}".replace(" ", "\0"))
    lines = textwrap.wrap(" ".join(told), LINE - 30, break_on_hyphens=False)
    return " \\\n  ".join(lines).replace("\0", " ")


def _paragraph(text: str) -> str:
    return textwrap.fill(text, LINE)
