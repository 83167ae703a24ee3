"""Requests of Dynamo's frontend in the form of the engine's wire.

The frontend has rendered and tokenised the prompt, and sends a dictionary: token_ids, sampling_options,
stop_conditions, output_options, eos_token_ids, routing (GenerateRequest in dynamo.common.backend.engine).
Sampling options go through the fields of Firelane's own API, so that they have the same ranges and the same
refusals.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from firelane.api.sampling import KvTransferParams, SamplingFields, check_shared, unsupported
from firelane.errors import RequestError
from firelane.request_limits import MAX_LOGPROBS
from firelane.text.prompt import SEED_MASK, default_sampling, wire_sampling
from firelane.text.schemas.constraints import grammar_of
from firelane.wire.frames import NewRequest, Sampling

REST_OF_CONTEXT = 2**31 - 1
SAME_NAMES = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "allowed_token_ids"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("use_beam_search", "length_penalty"),
)
"""Sampling options that Firelane's API calls the same."""
GUIDES = ("json", "regex", "choice", "grammar")
NAMES = SamplingFields.field_names()
WITHOUT = ("multi_modal_data", "prompt_embeds", "encoder_result")
"""Inputs that no engine of Firelane takes."""


def new_requests(
    request: Mapping[str, Any],
    request_id: str,
    next_id: Callable[[], int],
    defaults: Mapping[str, float],
    *,
    prefill_only: bool = False,
) -> list[NewRequest]:
    """One sequence for each choice. request_id: of Dynamo, which a request keeps when it goes on at another
    worker; next_id: makes ids of sequences; defaults: sampling values of the model's author. prefill_only:
    one token is drawn, and where the pages are is told. Raises RequestError.
    """
    _refuse(request)
    fields = _fields(request)
    reports = _reports(request)
    sampling = wire_sampling(
        fields,
        default_sampling(defaults, "vllm"),
        seed=_seed(fields, request_id),
        max_tokens=1 if prefill_only else _max_tokens(fields),
        stop_token_ids=_stop_ids(request),
        reports=reports,
    )
    prompt, grammar = _packed(request["token_ids"]), grammar_of(fields)
    pages_at, pages_address = _pages(request)
    salt = (_part(request, "routing").get("cache_salt") or "").encode()
    return [
        NewRequest(
            id=next_id(),
            prompt=prompt,
            sampling=_of_choice(sampling, index),
            salt=salt,
            grammar=grammar,
            client=("", request_id) if grammar is not None else ("", ""),
            pages_at=pages_at,
            pages_address=pages_address,
            tells_pages=prefill_only,
        )
        for index in range(1 if prefill_only else fields.n or 1)
    ]


def _pages(request: Mapping[str, Any]) -> tuple[str, str]:
    """Engine and address that the prompt's pages come from, as a worker for prefill has said. What cannot be
    understood is computed."""
    said = _part(_part(request, "prefill_result"), "disaggregated_params").get("kv_transfer_params")
    try:
        return msgspec.convert(said or {}, KvTransferParams, strict=False).source
    except msgspec.ValidationError:
        return "", ""


def _refuse(request: Mapping[str, Any]) -> None:
    for name in WITHOUT:
        if request.get(name):
            raise unsupported(name)
    options = _part(request, "sampling_options")
    if (options.get("best_of") or 1) > (options.get("n") or 1):
        raise unsupported("best_of")
    if options.get("bad_words_token_ids"):
        raise unsupported("bad_words")


def _fields(request: Mapping[str, Any]) -> SamplingFields:
    options, stop = _part(request, "sampling_options"), _part(request, "stop_conditions")
    given = {name: options.get(name) for name in SAME_NAMES}
    given |= {name: stop.get(name) for name in ("max_tokens", "min_tokens", "ignore_eos")}
    guide = _part(options, "guided_decoding")
    given |= {f"guided_{kind}": guide.get(kind) for kind in GUIDES}
    given["guided_whitespace_pattern"] = guide.get("whitespace_pattern")
    if tag := guide.get("structural_tag"):
        text = tag if isinstance(tag, str) else msgspec.json.encode(tag).decode()
        given["structured_outputs"] = {"structural_tag": text}
    NAMES.translate(given)
    try:
        fields = msgspec.convert(given, SamplingFields, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"sampling options: {error}") from error
    if fields.max_tokens is not None and fields.min_tokens is not None:
        fields.min_tokens = min(fields.min_tokens, fields.max_tokens)  # one that goes on has fewer to come
    check_shared(fields)
    return fields


def _reports(request: Mapping[str, Any]) -> tuple[int, int]:
    """Return logprobs and prompt_logprobs as Sampling has them. Raises RequestError."""
    options = _part(request, "output_options")
    found = [options.get(name) for name in ("logprobs", "prompt_logprobs")]
    for count in found:
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            raise RequestError(f"logprobs is {count}: 0 to {MAX_LOGPROBS} are given", param="logprobs")
    output, prompt = (-1 if count is None else int(count) for count in found)
    return output, prompt


def _seed(fields: SamplingFields, request_id: str) -> int:
    """A request that goes on at another worker draws the very tokens that the first one would have drawn."""
    if fields.seed is not None:
        return fields.seed
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")


def _max_tokens(fields: SamplingFields) -> int:
    return REST_OF_CONTEXT if fields.max_tokens is None else fields.max_tokens


def _stop_ids(request: Mapping[str, Any]) -> list[int]:
    stop = _part(request, "stop_conditions")
    if stop.get("ignore_eos"):
        return list(stop.get("stop_token_ids") or ())
    kinds = (stop.get("stop_token_ids"), stop.get("stop_token_ids_hidden"), request.get("eos_token_ids"))
    return sorted({token for kind in kinds for token in kind or ()})


def _of_choice(sampling: Sampling, index: int) -> Sampling:
    """Prompt's log-probabilities are those of the first choice."""
    if index == 0:
        return sampling
    seed = (sampling.seed + index) & SEED_MASK
    return msgspec.structs.replace(sampling, seed=seed, prompt_logprobs=-1)


def _packed(token_ids: list[int] | bytes) -> bytes:
    """Little-endian int32. The frontend sends a list, or these very bytes."""
    if isinstance(token_ids, bytes):
        return token_ids
    try:
        return array("i", token_ids).tobytes()
    except (OverflowError, TypeError) as error:
        raise RequestError(f"token_ids: {error}", param="token_ids") from error


def _part(request: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return request.get(name) or {}
