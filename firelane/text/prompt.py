"""Messages and texts to token ids, and the request's fields to what the engine is told."""

from __future__ import annotations

import array
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, cast

from firelane.api.chat import ChatRequest
from firelane.api.completions import CompletionRequest
from firelane.api.sampling import SamplingFields
from firelane.child_process import Replacements
from firelane.errors import ContextLengthError, RequestError, TokenizerError
from firelane.request_limits import MAX_STOP_IDS
from firelane.text.images.image_process import ImageDecoder
from firelane.text.infill.marks import find_marks
from firelane.text.infill.prompt import Infiller, TextWithGap
from firelane.text.model_files import ModelTextFiles
from firelane.text.rendering.template_process import TemplateRenderer
from firelane.text.tokens.tokenizer import TextEncoder, TextRoom, Tokenizer, pack_prompts, unpack_ids
from firelane.wire.frames import Ready, Sampling
from firelane.wire.images import Image

SEED_MASK = 2**63 - 1
Fallback = Literal["vllm", "llama.cpp"]
"""Whose values hold where neither the request nor the model's author names one. vllm: draw from the whole
vocabulary at temperature 1, as APIs for programs do. llama.cpp: leave unlikely tokens out, without which a
small model talks nonsense, as programs do in which people talk to a model."""
FALLBACKS: dict[Fallback, dict[str, float]] = {
    "vllm": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0},
    "llama.cpp": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0},
}


def default_sampling(author: Mapping[str, float], fallback: Fallback) -> dict[str, float]:
    """The values of a request that names none. author: those that the model's author advises, each of which
    comes first."""
    return {name: author.get(name, value) for name, value in FALLBACKS[fallback].items()}


class SamplingValues(Protocol):
    """Sampling values of a request; None: the default."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...
    @property
    def presence_penalty(self) -> float | None: ...
    @property
    def frequency_penalty(self) -> float | None: ...
    @property
    def logit_bias(self) -> dict[int, float] | None: ...
    @property
    def min_tokens(self) -> int | None: ...


def wire_sampling(
    values: SamplingValues,
    defaults: Mapping[str, float],
    *,
    seed: int,
    max_tokens: int,
    stop_token_ids: list[int],
    reports: tuple[int, int],
) -> Sampling:
    """The Sampling that the engine is told. defaults: of `default_sampling`. reports: logprobs of output and
    prompt, -1 for none.
    """

    def value(given: float | None, name: str) -> float:
        return float(defaults[name] if given is None else given)

    return Sampling(
        temperature=value(values.temperature, "temperature"),
        top_k=max(0, int(value(values.top_k, "top_k"))),
        top_p=max(1e-6, value(values.top_p, "top_p")),
        min_p=value(values.min_p, "min_p"),
        repetition_penalty=value(values.repetition_penalty, "repetition_penalty"),
        presence_penalty=values.presence_penalty or 0.0,
        frequency_penalty=values.frequency_penalty or 0.0,
        logit_bias=sorted((values.logit_bias or {}).items()),
        seed=seed & SEED_MASK,
        max_tokens=max_tokens,
        min_tokens=min(values.min_tokens or 0, max_tokens),
        stop_token_ids=stop_token_ids,
        logprobs=reports[0],
        prompt_logprobs=reports[1],
    )


DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of one prompt, packed as in NewRequest.prompt; `text` is what the client sent, None when it
    sent ids.
    """

    packed: bytes
    text: str | None
    images: list[Image] = field(default_factory=list[Image])
    image_token: int = -1
    """The token of an image's rows, in place of which `packed` has the words that name it."""

    @property
    def ids(self) -> memoryview[int]:
        ids = unpack_ids(self.packed)
        if not self.images:
            return ids
        return memoryview(array.array("i", [self.image_token if token < 0 else token for token in ids]))

    def __len__(self) -> int:
        """Tokens."""
        return len(self.packed) // 4


class PromptBuilder:
    """Knows the model's tokenizer, chat template and generation defaults, which are in `files`. eos_ids:
    tokens that end a sequence.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        files: ModelTextFiles,
        replaced: Replacements | None = None,
        trials_dir: Path | None = None,
    ) -> None:
        """replaced: notes processes of the template that were lost. trials_dir: as of a TemplateRenderer.
        Raises TokenizerError where the files cannot be used."""
        self.tokenizer = tokenizer
        self.encoder = TextEncoder(tokenizer)
        self.images = ImageDecoder(replaced or Replacements())
        self.files = files
        marks = find_marks(tokenizer, files.infill_names)
        self._infiller = None if marks is None else Infiller(tokenizer, marks)
        own = tokenizer.id_of(files.specials.get("eos_token", ""))
        self.eos_ids = _checked(frozenset(files.eos_ids if own is None else (*files.eos_ids, own)))
        self.template: TemplateRenderer | None = None
        if files.template is not None:
            self.template = TemplateRenderer(
                files.template,
                files.specials,
                files.template_path,
                replaced=replaced,
                trials_dir=trials_dir,
            )

    def end_at(self, names: Sequence[str]) -> None:
        """Special tokens of these names end a sequence, too. Raises TokenizerError where there are too
        many.
        """
        ids = {token for name in names if (token := self.tokenizer.id_of(name)) is not None}
        self.eos_ids = _checked(self.eos_ids | (ids & self.tokenizer.special_ids))

    def close(self) -> None:
        """End what renders the template and decodes images; idempotent."""
        self.images.close()
        if self.template is not None:
            self.template.close()

    @property
    def fills_gaps(self) -> bool:
        """Whether the model has marks of texts with a gap."""
        return self._infiller is not None

    def infiller(self, part: str) -> Infiller:
        """part: what the request calls the text behind a gap. Raises RequestError."""
        if self._infiller is None:
            raise RequestError(
                f"`{part}`: this model cannot fill in the middle, as its vocabulary has no marks for that, "
                "such as <|fim_prefix|>: use a model that has them, or leave it out",
                param=part,
                code="unsupported_parameter",
            )
        return self._infiller

    async def completion(self, request: CompletionRequest, room: TextRoom) -> list[Prompt]:
        """One Prompt per prompt of the request. Raises ContextLengthError and RequestError."""
        items = request.prompts()
        if request.suffix:
            infiller, special = self.infiller("suffix"), request.add_special_tokens is not False
            gaps = [TextWithGap(prefix=prefix, suffix=request.suffix) for prefix in cast(list[str], items)]
            found = [await infiller.prompt(gap, room, special=special) for gap in gaps]
            return [Prompt(packed, None) for packed in await pack_prompts(found)]
        if isinstance(items[0], str):
            return await self.encode(cast(list[str], items), room, request.add_special_tokens is not False)
        if not all(items):
            raise RequestError("`prompt` holds an empty list of token ids", param="prompt")
        return [Prompt(packed, None) for packed in await pack_prompts(cast(list[list[int]], items))]

    async def encode(self, texts: Sequence[str], room: TextRoom, special: bool) -> list[Prompt]:
        """Prompts from the texts of one request. Raises ContextLengthError, and RequestError where one has no
        tokens."""
        packed = await self.encoder.encode(texts, room, special=special)
        if not all(packed):
            raise RequestError("the prompt has no tokens: give at least one character", param="prompt")
        return [Prompt(ids, text) for ids, text in zip(packed, texts, strict=True)]

    async def prediction(self, request: ChatRequest, room: TextRoom) -> bytes:
        """The answer that a client expects, packed as in NewRequest.prediction; b"" of none. Raises
        ContextLengthError, and RequestError where a client has gone."""
        text = "" if request.prediction is None else request.prediction.text
        if not text or request.most_drafted == 0:
            return b""
        (packed,) = await self.encoder.encode([text], room, special=False)
        if len(packed) > 4 * room.max_tokens:
            raise room.too_long()
        return packed

    def truncated(self, fields: SamplingFields, prompt: Prompt, ready: Ready) -> Prompt:
        """With `truncate_prompt_tokens` no more than those. Raises RequestError where it has images."""
        keep = tokens_to_keep(fields, ready.max_model_len)
        if keep is None or len(prompt) <= keep:
            return prompt
        if prompt.images:
            raise RequestError(
                "a prompt with images is not cut: leave `truncate_prompt_tokens` out",
                param="truncate_prompt_tokens",
            )
        packed = prompt.packed
        return Prompt(packed[: 4 * keep] if fields.truncation_side == "right" else packed[-4 * keep :], None)

    def sampling(
        self,
        fields: SamplingFields,
        prompt: Prompt,
        ready: Ready,
        reports: tuple[int, int],
        fallback: Fallback = "vllm",
    ) -> Sampling:
        """The Sampling that the engine is told, with the seed of choice 0. `reports`: logprobs of output and
        prompt, as in Sampling.

        Raises ContextLengthError and RequestError when the engine could not take the request.
        """
        max_tokens = self._max_tokens(fields, prompt, ready.max_model_len)
        self._check_ids(fields, prompt, ready.vocab_size)
        return wire_sampling(
            fields,
            default_sampling(self.files.defaults, fallback),
            seed=secrets.randbits(63) if fields.seed is None else fields.seed,
            max_tokens=max_tokens,
            stop_token_ids=self._stop_ids(fields, prompt),
            reports=reports,
        )

    def _stop_ids(self, fields: SamplingFields, prompt: Prompt) -> list[int]:
        own = frozenset[int]() if fields.ignore_eos else self.eos_ids | self._gap_ends(fields, prompt)
        stop_ids = {*(fields.stop_token_ids or ()), *own}
        if len(stop_ids) > MAX_STOP_IDS:
            raise RequestError(
                f"`stop_token_ids`: {len(stop_ids)} tokens would end the answer, the model's own included: "
                f"at most {MAX_STOP_IDS} are taken",
                param="stop_token_ids",
            )
        return sorted(stop_ids)

    def _gap_ends(self, fields: SamplingFields, prompt: Prompt) -> frozenset[int]:
        """Marks that end an answer in a gap, also of a prompt that a client has made of marks itself."""
        if self._infiller is None or not isinstance(fields, CompletionRequest):
            return frozenset()
        marks = self._infiller.marks
        last = prompt.ids[-1] if len(prompt) else None
        return marks.ends if fields.fills or last == marks.middle else frozenset()

    def _max_tokens(self, fields: SamplingFields, prompt: Prompt, max_model_len: int) -> int:
        """A silent chat gets the rest of the context, a silent completion 16 tokens as with OpenAI."""
        chat = isinstance(fields, ChatRequest)
        used, room = len(prompt), max_model_len - len(prompt)
        asked = fields.max_tokens
        part = "messages" if chat else "prompt"
        limit = f"This model's maximum context length is {max_model_len} tokens. However, "
        if room < 1:
            raise ContextLengthError(
                f"{limit}your {part} resulted in {used} tokens. Please reduce the length of the {part}.",
                param=part,
            )
        if asked == -1:
            return room
        if asked is None:
            return room if chat else min(room, DEFAULT_COMPLETION_TOKENS)
        if asked > room:
            raise ContextLengthError(
                f"{limit}you requested {used + asked} tokens ({used} in the {part}, {asked} in the "
                f"completion). Please reduce the length of the {part} or completion.",
                param=part,
            )
        return max(asked, 1)  # 0 only with echo, whose one drawn token is not shown

    def _check_ids(self, fields: SamplingFields, prompt: Prompt, vocab_size: int) -> None:
        named: dict[str, Collection[int]] = {
            "logit_bias": fields.logit_bias or (),
            "stop_token_ids": fields.stop_token_ids or (),
            "allowed_token_ids": fields.allowed_token_ids or (),
        }
        if prompt.text is None:
            named["prompt"] = prompt.ids
        for name, ids in named.items():
            if ids and max(ids) >= vocab_size:
                raise RequestError(
                    f"`{name}` has token id {max(ids)}, but the vocabulary has {vocab_size} entries",
                    param=name,
                )


def _checked(eos_ids: frozenset[int]) -> frozenset[int]:
    if len(eos_ids) > MAX_STOP_IDS:
        raise TokenizerError(
            f"eos_token_id in generation_config.json: {len(eos_ids)} tokens would end an answer: "
            f"at most {MAX_STOP_IDS} are taken"
        )
    return eos_ids


def tokens_to_keep(fields: SamplingFields, max_model_len: int) -> int | None:
    """Number of tokens of a prompt to keep, the last or the first; with `truncate_prompt_tokens` -1, as many
    as leave room for `max_tokens`. None: all."""
    keep = fields.truncate_prompt_tokens
    if keep is None or keep > 0:
        return keep
    return max(1, max_model_len - max(1, fields.max_tokens or 0))
