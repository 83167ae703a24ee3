"""Write the trained model as a Hugging Face directory, with measured numbers in its card."""

from __future__ import annotations

import shutil
import tempfile
from copy import deepcopy
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaForCausalLM

from tools.embedded.batches import Stream, build_streams, validation_streams
from tools.embedded.card import SAMPLE_TOKENS, Measured, card
from tools.embedded.corpus import BOS, BOS_ID, PAD_ID, Corpus
from tools.embedded.tokenizer import STOP_IDS, save_tokenizer
from tools.embedded.trainer import CONTEXT, Trainer, validation_loss

CODE_PROMPT = '''import os


def count_lines(path):
    """Return the number of lines in a file."""'''
CHAT_PROMPT = "Write a Python function `is_absolute(path)`: Return True if path is absolute."
WINDOWS = (512, 1024, 2048)


def export(trainer: Trainer, corpus: Corpus, tokenizer: Tokenizer, threads: int, directory: Path) -> None:
    """Write the model directory; it appears whole, in place of the one that was there."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "model"
        _save_model(trainer.model, made)
        save_tokenizer(tokenizer, made, CONTEXT)
        measured = measure(trainer, corpus, tokenizer, threads, made)
        (made / "MODEL_CARD.md").write_text(card(trainer.recipe, measured), encoding="utf-8")
        directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(made.iterdir()):
            path.chmod(0o644)
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
        held_out=_losses(model, held_out),
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
        eos_token_id=list(STOP_IDS),
        pad_token_id=PAD_ID,
    )
    return tokenizer.decode(made[0, ids.shape[1] :].tolist(), skip_special_tokens=True)


def _losses(model: LlamaForCausalLM, held_out: tuple[Stream, ...]) -> dict[str, float]:
    code, chats = held_out
    found = {
        f"code, windows of {length}": validation_loss(model, code, 98304 // length, length)
        for length in WINDOWS
    }
    return found | {"chats, windows of 512": validation_loss(model, chats, 192, 512)}


def _chat_prompt(request: str) -> str:
    return f"{BOS}<|user|>\n{request}<|end|>\n<|assistant|>\n"


def _save_model(model: LlamaForCausalLM, directory: Path) -> None:
    """Save a bf16 copy; the trainer's own weights stay as they are."""
    copy = LlamaForCausalLM(deepcopy(model.config))
    copy.load_state_dict(model.state_dict())
    copy.bfloat16()
    copy.config.use_cache = True
    copy.config.eos_token_id = list(STOP_IDS)
    copy.generation_config = GenerationConfig(
        bos_token_id=BOS_ID,
        eos_token_id=list(STOP_IDS),
        pad_token_id=PAD_ID,
    )
    copy.save_pretrained(directory)
