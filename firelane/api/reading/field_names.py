"""Names of request fields that decide what an answer may be, or carry what it is made from: one list for all
paths that generate text.

Each server of the field has names of its own for such things. Where this server has the feature, the name
stands for its own name of it. Where it has not, the request is refused: an answer that breaks what was asked
for, or was made without a part of the conversation, looks like a good one. Names that are in no list are left
out, and the client is told (slices.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from firelane.errors import RequestError

Fields = dict[str, Any]

ALIASES: Mapping[str, str] = {
    **dict.fromkeys(
        ("n_predict", "num_predict", "max_new_tokens", "max_output_tokens", "max_completion_tokens"),
        "max_tokens",
    ),
    "min_new_tokens": "min_tokens",
    "stop_sequences": "stop",
    "no_stop_trim": "include_stop_str_in_output",
    "repeat_penalty": "repetition_penalty",
    **dict.fromkeys(("random_seed", "sampling_seed"), "seed"),
    "regex": "guided_regex",
    "speculative.n_max": "speculative.num_speculative_tokens",
    **dict.fromkeys(("ebnf", "grammar_string"), "grammar"),
    **dict.fromkeys(
        ("thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens"),
        "thinking_token_budget",
    ),
}
"""Other servers' names, and the name that chat and completions have for the same. A request type may say with
OWN_NAMES what it calls that. A name with a dot is in an object.
"""
LIMITS, NO_LIMIT = ("max_tokens", "thinking_token_budget"), (-1, -2)
"""Most numbers of tokens, and their values that set no limit, where they come by another server's name."""
INSIDE = ("options", "extra_body", "sampling_params", "parameters")
"""Objects that clients of other servers, or by mistake, put fields of a request into."""

Neutral = tuple[Any, ...] | Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that is not implemented. neutral: values that ask for nothing, or what says whether a value
    asks for nothing; null always does. advice: what to do instead.
    """

    neutral: Neutral = ()
    advice: str = "leave it out"

    def asks_for_nothing(self, value: Any) -> bool:
        if value is None:
            return True
        return self.neutral(value) if callable(self.neutral) else value in self.neutral


def _has_no_form(value: Any) -> bool:
    """Whether an object of another API that may hold the wanted form of an answer holds none."""
    form: Any = cast(Fields, value).get("format") if isinstance(value, dict) else value
    return not form or (isinstance(form, dict) and cast(Fields, form).get("type") == "text")


def _not_above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and value <= 0


_FORM = "use `response_format`"
_ADAPTER = (
    "name an adapter that the server has (--lora NAME=DIR) as `model` or `lora_path`, and leave this out"
)
_SAMPLER = "use `temperature`, `top_p`, `top_k` or `min_p`, and leave it out"
_STATE = "this path keeps no state: send the whole conversation"
_MESSAGES = "put it into the conversation's messages"
_ONE_ANSWER = "this path gives one answer: send several requests"

REFUSED: Mapping[str, Refusal] = {
    # How tokens are drawn.
    **dict.fromkeys(("typical_p", "typ_p", "tfs_z", "tfs"), Refusal((1,), _SAMPLER)),
    **dict.fromkeys(("mirostat", "xtc_probability", "dry_multiplier", "top_a"), Refusal((0,), _SAMPLER)),
    **dict.fromkeys(("dynatemp_range", "smoothing_factor", "penalty_alpha"), Refusal((0,), _SAMPLER)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), Refusal((0,), _SAMPLER)),
    "adaptive_target": Refusal(lambda value: isinstance(value, int | float) and value < 0, _SAMPLER),
    **dict.fromkeys(("top_n_sigma", "nsigma"), Refusal(_not_above_zero, _SAMPLER)),
    "do_sample": Refusal((True,), "use `temperature` 0 for the likeliest tokens"),
    "encoder_repetition_penalty": Refusal((1,)),
    "no_repeat_ngram_size": Refusal((0,)),
    "repetition_detection": Refusal(),
    **dict.fromkeys(("num_beams", "beam_width", "length_penalty"), Refusal((1,))),
    **dict.fromkeys(("early_stopping", "use_beam_search", "watermark", "watermarking"), Refusal((False,))),
    "guidance_scale": Refusal((1,)),
    "negative_prompt": Refusal(("",)),
    "logits_processors": Refusal(([],)),
    "custom_logit_processor": Refusal(),
    "vllm_xargs": Refusal(({},)),
    # What the answer must be, and where it ends.
    **dict.fromkeys(("text", "output_config"), Refusal(_has_no_form, _FORM)),
    **dict.fromkeys(("output_format", "structural_tag"), Refusal((), _FORM)),
    "guided_whitespace_pattern": Refusal((), "use `structured_outputs.whitespace_pattern`"),
    "grammar_lazy": Refusal((False,)),
    "grammar_triggers": Refusal(([],)),
    "stop_regex": Refusal(([], ""), "use `stop`"),
    "max_length": Refusal((), "use `max_tokens`"),
    "min_length": Refusal((0,), "use `min_tokens`"),
    "t_max_predict_ms": Refusal(_not_above_zero, "use `max_tokens`"),
    "ban_eos_token": Refusal((False,), "use `ignore_eos` or `min_tokens`"),
    **dict.fromkeys(("banned_tokens", "custom_token_bans", "bad"), Refusal(([], ""), "use `bad_words`")),
    "bad_token_ids": Refusal(([],), "use `logit_bias`"),
    "thinking_token_budget": Refusal(),
    "tool_choice": Refusal(("none", "auto")),
    "parallel_tool_calls": Refusal((True,)),
    # How much is answered.
    **dict.fromkeys(("n", "best_of"), Refusal((1,), _ONE_ANSWER)),
    "modalities": Refusal((["text"],), "answers are texts: leave it out"),
    "audio": Refusal((), "answers are texts: leave it out"),
    "moderation": Refusal(),
    "detokenize": Refusal((True,), "use `return_token_ids`"),
    "logprob_token_ids": Refusal(([],)),
    **dict.fromkeys(("return_mm_kwargs", "return_token_offsets", "return_prompt_text"), Refusal((False,))),
    "routed_experts_prompt_start": Refusal(),
    # Which weights answer.
    **dict.fromkeys(("lora", "lora_request"), Refusal(([], "", {}), _ADAPTER)),
    **dict.fromkeys(("adapter_id", "adapter_source"), Refusal(("",), _ADAPTER)),
    # What the answer is made from.
    **dict.fromkeys(("system", "instructions", "system_prompt"), Refusal(("", []), _MESSAGES)),
    "system_instruction": Refusal(("", {}), _MESSAGES),
    "documents": Refusal(([],), _MESSAGES),
    **dict.fromkeys(("tools", "functions"), Refusal(([],), "this path knows no tools")),
    **dict.fromkeys(("input_ids", "input_embeds", "prompt_embeds"), Refusal(([],), "send a text")),
    **dict.fromkeys(
        ("images", "image_data", "audio_data", "video_data", "mm_payload"),
        Refusal(([],), "models here read texts alone, so leave it out"),
    ),
    **dict.fromkeys(("media_io_kwargs", "mm_processor_kwargs"), Refusal(({},))),
    **dict.fromkeys(("suffix", "input_prefix", "input_suffix"), Refusal(("",))),
    "input_extra": Refusal(([],)),
    **dict.fromkeys(("chat_template", "template"), Refusal(("",), "the model's own template is used")),
    **dict.fromkeys(("width", "height", "steps"), Refusal((0,))),
    "prompt": Refusal(("", []), "send its text with the messages"),
    "continue_final_message": Refusal((False,), "say `prefix`: true in the last message"),
    "add_generation_prompt": Refusal((True,)),
    "access_programs": Refusal(),
    # State that is kept elsewhere.
    **dict.fromkeys(("previous_response_id", "conversation", "thread", "thread_id"), Refusal((), _STATE)),
    "context": Refusal(([],), "send the conversation's messages to /api/chat"),
    "session_params": Refusal(({},), _STATE),
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "disaggregated_params"), Refusal(({},))),
}
"""Fields that are refused, unless they ask for nothing, on every path whose request has no such field."""
COMPANIONS = frozenset(
    (
        *("mirostat_tau", "mirostat_eta", "xtc_threshold", "dry_base", "dry_allowed_length"),
        *("dry_penalty_last_n", "dry_sequence_breakers", "dry_range", "dynatemp_exponent"),
        *("smoothing_curve", "adaptive_decay", "dynatemp_low", "dynatemp_high"),
    )
)
"""Fields that say nothing without one that is refused."""


class FieldNames:
    """The names of one type of request. known: those of its fields. own: what it calls a field, by the name
    that chat and completions have for it; a name with a dot is in an object. constraints: further names that
    are refused inside of an object, where they are not read. no_limit: the value of `max_tokens`
    that sets none; None: it is left out.
    """

    def __init__(
        self,
        known: frozenset[str],
        own: Mapping[str, str],
        constraints: frozenset[str],
        no_limit: int | None = None,
    ) -> None:
        self._known = known
        self._no_limit = no_limit
        self._own = own
        self._constraints = constraints

    def translate(self, fields: Fields) -> None:
        """Give fields of a body with other servers' names the names of this type; take out those that ask for
        nothing. Raises RequestError on a field that is refused.
        """
        for name in [name for name in fields if name not in self._known]:
            self._translate_one(fields, name)
        for name in INSIDE:
            if isinstance(fields.get(name), dict):
                self._check_inside(fields[name], name)

    def _translate_one(self, fields: Fields, name: str) -> None:
        if name == "format":
            self._translate_format(fields)
            return
        common = ALIASES.get(name, name)
        target = self._own.get(common, common)
        if target in self._known or "." in target:
            if common in LIMITS and fields[name] in NO_LIMIT:
                fields[name] = self._no_limit if target == "max_tokens" else None
            _move(fields, name, target)
        else:
            _drop_neutral(fields, name, name)

    def _translate_format(self, fields: Fields) -> None:
        """Ollama's field: "json", or a JSON schema."""
        value = fields["format"]
        if isinstance(value, dict):
            _move(fields, "format", "json_schema")
        elif value == "json":
            fields["format"] = {"type": "json_object"}
            _move(fields, "format", "response_format")
        elif value in (None, ""):
            del fields["format"]
        else:
            raise refused("format", _FORM)

    def _check_inside(self, inside: Fields, outer: str) -> None:
        """Raises RequestError on a constraint in an object that has no such field."""
        known = {name.partition(".")[2] for name in self._own.values() if name.startswith(f"{outer}.")}
        for name in [name for name in inside if name not in known]:
            if ALIASES.get(name, name) in self._constraints and inside[name] is not None:
                raise refused(f"{outer}.{name}", "it is read at the top of the body, so put it there")
            _drop_neutral(inside, name, f"{outer}.{name}")


def _drop_neutral(fields: Fields, name: str, where: str) -> None:
    """Take a field of the lists above out. where: its name in errors. Raises RequestError on one that asks
    for something.
    """
    refusal = REFUSED.get(ALIASES.get(name, name))
    if refusal is not None and not refusal.asks_for_nothing(fields[name]):
        raise refused(where, refusal.advice)
    if refusal is not None or name in COMPANIONS:
        del fields[name]


def _move(fields: Fields, name: str, target: str) -> None:
    """Raises RequestError where the field that it is another name of says something else."""
    value = fields.pop(name)
    if value is None:
        return
    outer, _, inner = target.rpartition(".")
    place = _object(fields, outer) if outer else fields
    given = place.setdefault(inner, value)
    if given is None:
        place[inner] = value
    elif given != value:
        raise RequestError(f"`{name}` and `{target}` say different things: give one of them", param=name)


def _object(fields: Fields, name: str) -> Fields:
    """The object of this name; a new one where there is none. Raises RequestError."""
    if fields.get(name) is None:
        fields[name] = {}
    if not isinstance(fields[name], dict):
        raise RequestError(f"`{name}`: expected an object", param=name, code="invalid_value")
    return fields[name]


def refused(name: str, advice: str) -> RequestError:
    """The refusal of a field. advice: what to do instead."""
    return RequestError(
        f"`{name}` is not supported by this server: {advice}", param=name, code="unsupported_parameter"
    )
