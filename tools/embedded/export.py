"""Write the trained model as a Hugging Face directory, with measured numbers in its card."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaForCausalLM

from tools.embedded.batches import Stream, build_streams, validation_streams
from tools.embedded.card import SAMPLE_TOKENS, Measured, card
from tools.embedded.corpus import BOS, PAD, Corpus
from tools.embedded.tokenizer import save_tokenizer, stop_ids
from tools.embedded.trainer import CONTEXT, Trainer, validation_loss

CODE_PROMPT = '''import os


def count_lines(path):
    """Return the number of lines in a file."""
'''
CHAT_PROMPT = "Write a Python function `is_empty(path)`: Return True if the directory is empty."
WINDOWS = (512, 1024, 2048)


def export(trainer: Trainer, corpus: Corpus, tokenizer: Tokenizer, threads: int, directory: Path) -> None:
    """Write the model directory; it appears whole, in place of the one that was there."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "model"
        _save_model(trainer.model, tokenizer, made)
        save_tokenizer(tokenizer, made, CONTEXT)
        measured = measure(trainer, corpus, tokenizer, threads, made)
        (made / "MODEL_CARD.md").write_text(card(trainer.recipe, measured), encoding="utf-8")
        directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(made.iterdir()):
            shutil.move(path, directory / path.name)


def measure(trainer: Trainer, corpus: Corpus, tokenizer: Tokenizer, threads: int, made: Path) -> Measured:
    """Losses and samples of the weights as saved, read back from ``made``."""
    model = LlamaForCausalLM.from_pretrained(made, dtype=torch.float32).eval()
    train = build_streams(corpus, tokenizer, trainer.recipe.seed)
    held_out = validation_streams(corpus, tokenizer, trainer.recipe.seed)
    return Measured(
        parameters=model.num_parameters(),
        train_files=len(corpus.train),
        validation_files=len(corpus.validation),
        corpus_bytes=corpus.total_bytes,
        train_tokens={s.name: len(s.tokens) for s in train},
        validation_tokens={s.name: len(s.tokens) for s in held_out},
        steps=trainer.step,
        cpu_minutes=trainer.cpu_seconds / 60,
        train_loss=trainer.recent_loss,
        held_out=_losses(model, held_out, tokenizer.token_to_id(BOS)),
        samples=tuple(
            (prompt, complete(model, tokenizer, prompt, SAMPLE_TOKENS))
            for prompt in (BOS + CODE_PROMPT, _chat_prompt(CHAT_PROMPT))
        ),
        threads=threads,
    )


@torch.no_grad()
def complete(model: LlamaForCausalLM, tokenizer: Tokenizer, prompt: str, tokens: int) -> str:
    """The greedy continuation of a prompt that already holds its special tokens."""
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=stop_ids(tokenizer),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    return tokenizer.decode(made[0, ids.shape[1] :].tolist(), skip_special_tokens=True)


def _losses(model: LlamaForCausalLM, held_out: tuple[Stream, ...], bos: int) -> dict[str, float]:
    code, chats = held_out
    found = {
        f"code, windows of {length}": validation_loss(model, code, bos, 98304 // length, length)
        for length in WINDOWS
    }
    return found | {"chats, windows of 512": validation_loss(model, chats, bos, 192, 512)}


def _chat_prompt(request: str) -> str:
    return f"{BOS}<|user|>\n{request}<|end|>\n<|assistant|>\n"


def _save_model(model: LlamaForCausalLM, tokenizer: Tokenizer, directory: Path) -> None:
    """Save a bf16 copy; the trainer's own weights stay as they are."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy = copy.to(torch.bfloat16)
    copy.config.use_cache = True
    copy.config.eos_token_id = stop_ids(tokenizer)
    copy.generation_config = GenerationConfig(
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=stop_ids(tokenizer),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    copy.save_pretrained(directory)
