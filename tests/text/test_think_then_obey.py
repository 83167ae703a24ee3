"""Reasoning before what an answer is held to, in every format that has reasoning: whatever is drawn under the
grammar is read as a thought and an answer that holds."""

from __future__ import annotations

import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import msgspec
import numpy as np
import pytest
import tokenizers
from family_templates import HARMONY, TEMPLATES
from splitting import Joined, joined
from toy_model import byte_tokenizer, write_model

from firelane.api.chat import ChatRequest
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.source import new_matcher
from firelane.engine.grammar.vocabulary import load_vocabulary
from firelane.text.chat.assistant import Assistant, RenderedChat
from firelane.text.chat.chat_format import ModelChatFormat
from firelane.text.model_files import ModelTextFiles
from firelane.text.prompt import PromptBuilder
from firelane.text.tokens.tokenizer import Tokenizer, load_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
FORMATS = {"harmony": HARMONY, **TEMPLATES}
THINKING = {
    **dict.fromkeys(("hermes", "deepseek_v31", "kimi_k2", "qwen3_coder", "glm45", "minimax_m2"), "auto"),
    **dict.fromkeys(("harmony", "muse_glimmer"), "auto"),
    "deepseek_v3": "deepseek_r1",
    **{name: name for name in ("mistral", "seed_oss", "hy3", "apriel", "apertus", "cohere", "kimi_k3")},
    **{name: name for name in ("minimax_m3", "gemma4")},
}
"""By format of calls the --reasoning-parser."""
ASKS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "regex": {"guided_regex": "(yes|no)/[0-9]{2}"},
    "choice": {"guided_choice": ["left", "right"]},
    "gbnf": {"guided_grammar": 'root ::= "go " ("up" | "down")'},
    "forced": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "schema or calls": {
        "tools": [TOOL],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
}
TEXTS = {"regex": "(yes|no)/[0-9]{2}", "choice": "left|right", "gbnf": "go (up|down)"}
THINK = {"thinking": True, "enable_thinking": True}
MESSAGES = {
    "harmony": ("<|end|><|start|>assistant", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    "muse_glimmer": ("<|eom|><|start|>assistant", " to=self<|message|>", " to=user<|message|>"),
}
"""Marks of formats whose answers are messages."""
FIRST_BYTE, FIRST_MARK = 5, 261
VOCAB_SIZE = 512
NEAR = frozenset(letter.encode() for letter in '</think>[]|" \n')
"""Letters of marks: thoughts that nearly end."""
MOST_TOKENS = 4000
SEEDS = range(3)


def marks_of(chat_format: ModelChatFormat) -> tuple[str, ...]:
    """Special tokens of models that write so."""
    shaper = chat_format.reader or chat_format.family
    known = () if shaper is None else shaper.delimiters
    own = () if chat_format.marks is None else chat_format.marks.delimiters
    whole = (mark for mark in own if not any(name in mark for name in known))
    return tuple(dict.fromkeys((*known, *whole)))


class Model:
    """A model that draws at random, often letters of marks. tokens: whether marks are tokens."""

    def __init__(self, path: Path, name: str, *, tokens: bool) -> None:
        core = byte_tokenizer()
        if tokens:
            with_text = PromptBuilder(Tokenizer(core), ModelTextFiles(template=FORMATS[name]))
            marks = marks_of(Assistant(with_text, reasoning_parser=THINKING[name]).chat_format)
            with_text.close()
            core = byte_tokenizer()
            core.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in marks])
        self._tokenizer = load_tokenizer(write_model(path, core))
        self._prompts = PromptBuilder(self._tokenizer, ModelTextFiles(template=FORMATS[name]))
        self._assistant = Assistant(self._prompts, reasoning_parser=THINKING[name])
        self._vocabulary = load_vocabulary(path, VOCAB_SIZE)
        marks = self._assistant.chat_format.marks
        self._marks = MESSAGES.get(name, ()) if marks is None else (marks.close, marks.open)

    def ask(self, **fields: Any) -> RenderedChat:
        body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": THINK, **fields}
        request = msgspec.convert(body, ChatRequest)
        request.check()
        return self._assistant.chat_blocking(request)

    def draw(self, chat: RenderedChat, seed: int) -> list[int]:
        """Tokens of an answer. The matcher begins anew at some place, as after the death of an engine."""
        rng, tokens = random.Random(seed), list[int]()
        matcher, again = self._matcher(chat), rng.randrange(1, 60)
        while len(tokens) < MOST_TOKENS:
            if len(tokens) == again:
                matcher = self._matcher(chat)
                assert all(matcher.consume_token(token) for token in tokens)
            allowed = self._allowed(matcher)
            if matcher.is_accepting() and (not allowed or rng.random() < 0.5):
                return tokens
            found = self._mark(rng, matcher, begins=not tokens) or [self._choose(rng, allowed)]
            tokens += found
            assert all(matcher.consume_token(token) for token in found)
        raise AssertionError(f"no end: {self.pieces(chat, tokens)[-200:]}")

    def goes_on(self, chat: RenderedChat, text: str) -> bool:
        """Whether some answer begins so."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        return self._matcher(chat).try_consume_tokens(tokens) == len(tokens)

    def _matcher(self, chat: RenderedChat) -> llguidance.LLMatcher:
        assert chat.grammar is not None
        return new_matcher(chat.grammar, self._vocabulary.tokenizer, GrammarLimits())

    def _allowed(self, matcher: llguidance.LLMatcher) -> list[int]:
        mask = np.zeros(VOCAB_SIZE // 32 + 1, np.uint32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        found = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        return [token for token in found.tolist() if token != self._vocabulary.end]

    def _mark(self, rng: random.Random, matcher: llguidance.LLMatcher, *, begins: bool) -> list[int]:
        """Tokens of a mark of reasoning, now and then, where one may stand here."""
        if rng.random() > (0.5 if begins else 0.05):
            return []
        for mark in self._marks:
            found = self._tokenizer.encode(mark, add_special_tokens=False)
            if matcher.deep_copy().try_consume_tokens(found) == len(found):
                return found
        return []

    def _choose(self, rng: random.Random, allowed: list[int]) -> int:
        """A mark with one chance of ten, where there is one; else a letter, and often one of a mark."""
        letters = {t: self._tokenizer.token_bytes(t) for t in allowed if FIRST_BYTE <= t < FIRST_MARK}
        marks = [t for t in allowed if t not in letters]
        if marks and (not letters or rng.random() < 0.1):
            return rng.choice(marks)
        near = [t for t, text in letters.items() if text in NEAR]
        plain = [t for t, text in letters.items() if text.isascii() and text.isalnum()]
        return rng.choice(rng.choice([pool for pool in (near, plain, [*letters]) if pool]))

    def pieces(self, chat: RenderedChat, tokens: list[int]) -> list[str]:
        """The text that the gateway's splitter gets of each token."""
        made = self._tokenizer.detokenizer(chat.visible_special_ids)
        return [*(made.push(token) for token in tokens), made.flush()]

    def close(self) -> None:
        self._prompts.close()


def read(chat: RenderedChat, pieces: list[str]) -> Joined:
    if chat.splitter is None:
        return "".join(pieces), "", []
    splitter = chat.splitter()
    return joined([delta for piece in pieces for delta in splitter.push(piece)] + splitter.flush())


def holds(ask: str, found: Joined) -> bool:
    """Whether content and calls are what was asked for."""
    content, _, calls = found
    if ask == "forced" or (ask == "schema or calls" and calls):
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMA)
            assert name == "f"
        return bool(calls) and not content.strip()
    if "schema" in ask:
        jsonschema.validate(json.loads(content), SCHEMA)
        return not calls
    return re.fullmatch(TEXTS[ask], content) is not None and not calls


@pytest.fixture(params=[True, False], ids=["tokens", "text"])
def marks_are_tokens(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.mark.parametrize("name", THINKING)
def test_whatever_is_drawn_is_a_thought_and_an_answer_that_holds(
    tmp_path: Path, name: str, marks_are_tokens: bool
) -> None:
    with contextlib.closing(Model(tmp_path, name, tokens=marks_are_tokens)) as model:
        thoughts = 0
        for number, (ask, fields) in enumerate(ASKS.items()):
            chat = model.ask(**fields)
            for seed in SEEDS:
                pieces = model.pieces(chat, model.draw(chat, 10 * number + seed))
                found = read(chat, pieces)
                assert holds(ask, found), (ask, "".join(pieces), found)
                assert read(chat, ["".join(pieces)]) == found  # however it is cut
                thoughts += bool(found[1])
        assert thoughts >= len(SEEDS)


@pytest.mark.parametrize("name", ["hermes", "deepseek_v31", "seed_oss", "gemma4", "kimi_k3"])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_thought_within_its_budget(tmp_path: Path, name: str, budget: int) -> None:
    """Tokens are bytes here: no thought has more of them."""
    with contextlib.closing(Model(tmp_path, name, tokens=True)) as model:
        for ask in ("schema", "forced"):
            chat = model.ask(**ASKS[ask], thinking_token_budget=budget)
            assert chat.ignored == ()
            for seed in SEEDS:
                found = read(chat, model.pieces(chat, model.draw(chat, seed)))
                assert holds(ask, found)
                assert len(found[1].encode()) <= 3 * budget  # bytes of half a character are shown as three


def test_a_budget_of_marks_that_are_text_is_a_hint(tmp_path: Path) -> None:
    with contextlib.closing(Model(tmp_path, "hermes", tokens=False)) as model:
        chat = model.ask(**ASKS["schema"], thinking_token_budget=5)
        assert chat.ignored == ("thinking_token_budget",)
        assert chat.grammar is not None
        assert "{0,5}" not in chat.grammar.before
        assert "suffix" in chat.grammar.before


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_that_is_turned_off(tmp_path: Path, name: str) -> None:
    """The grammar holds from the first token, as where a model does not think."""
    off = {"thinking": False, "enable_thinking": False}
    with contextlib.closing(Model(tmp_path, name, tokens=True)) as model:
        for ask, fields in ASKS.items():
            chat = model.ask(**fields | {"chat_template_kwargs": off})
            assert chat.grammar is not None
            assert chat.grammar.before == ""
            found = read(chat, model.pieces(chat, model.draw(chat, 1)))
            assert holds(ask, found)
