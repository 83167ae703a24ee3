"""Work of both the trial and the compiler on a grammar's text: into llguidance's form, under its limits, its
complaints in one line."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.structural_tags import in_slashes, lark_of_tags
from firelane.engine.grammar.wide_objects import lark_of
from firelane.errors import RequestError
from firelane.wire.frames import Grammar
from firelane.wire.sampling import WITH_SCHEMAS

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NAMES = {
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "lark": "the grammar",
    "gbnf": "the grammar",
    "structural_tag": "the structural tag",
}
# JSON has no white space unless the schema asks for some in `x-guidance`: then what that says, or else a
# space, or a new line with its indentation, so that a model cannot lose itself in it.
COMPACT = {"whitespace_flexible": False, "lenient": False}
WHITESPACE = r" ?|\r?\n[ \t]{0,40}"
MAX_DETAIL = 300


def check_size(grammar: Grammar, limits: GrammarLimits) -> None:
    """Cheap enough for the step loop. Raises RequestError."""
    if not grammar.text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in grammar.text):
        raise RequestError(f"{NAMES[grammar.kind]} is not Unicode text: it has half of a surrogate pair")
    most = limits.schema_bytes if grammar.kind in WITH_SCHEMAS else limits.text_bytes
    size = len(grammar.text.encode()) + len(grammar.before.encode())
    if size > most:
        raise RequestError(f"{NAMES[grammar.kind]} has {size} bytes: at most {most} are taken")


def new_matcher(grammar: Grammar, tokenizer: LLTokenizer, limits: GrammarLimits) -> LLMatcher:
    """Raises RequestError where the grammar is wrong, or asks for something that would be ignored."""
    from llguidance import LLMatcher, LLParserLimits

    parser_limits = LLParserLimits(
        initial_lexer_fuel=limits.lexer_fuel,
        max_grammar_size=limits.grammar_symbols,
        step_lexer_fuel=limits.step_fuel,
        step_max_items=limits.step_items,
        max_items_in_row=limits.row_items,
        max_lexer_states=limits.lexer_states,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, _source(grammar), log_level=0, limits=parser_limits)
    check(matcher, grammar)
    if warnings := matcher.get_grammar_warnings():
        name = NAMES[grammar.kind]
        raise RequestError(f"{name} cannot be honoured in full: {one_line(warnings[0])}; leave that out")
    forced, most = len(matcher.compute_ff_bytes()), limits.forced_bytes
    if forced > most:
        raise RequestError(
            f"{NAMES[grammar.kind]} fixes {forced} bytes of the text: at most {most} are taken at once"
        )
    return matcher


def check(matcher: LLMatcher, grammar: Grammar) -> None:
    """Raises RequestError where the matcher has given up."""
    if matcher.is_error():
        raise RequestError(f"{NAMES[grammar.kind]} cannot be used: {one_line(matcher.get_error())}")


def _source(grammar: Grammar) -> str:
    """The grammar in llguidance's own form."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = grammar.text
    try:
        if grammar.before:
            return LLMatcher.grammar_from_lark(_behind(grammar))
        if grammar.kind == "json_schema":
            return _json_source(text)
        if grammar.kind == "regex":
            return LLMatcher.grammar_from_regex(text)
        if grammar.kind == "structural_tag":
            return LLMatcher.grammar_from_lark(lark_of_tags(text))
        return LLMatcher.grammar_from_lark(gbnf_to_lark(text) if grammar.kind == "gbnf" else text)
    except Exception as error:  # the library's converter raises that itself
        raise RequestError(f"{NAMES[grammar.kind]} is not valid: {one_line(str(error))}") from error


def _behind(grammar: Grammar) -> str:
    """A Lark grammar of what stands before the text, and of the text, whose rules have names of their own."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = grammar.text
    if grammar.kind == "json_schema":
        answer = _inner_json(text)
    elif grammar.kind == "regex":
        answer = f"/{in_slashes(text)}/"
    elif grammar.kind == "structural_tag":
        answer = _inner_lark(lark_of_tags(text))
    else:
        answer = _inner_lark(gbnf_to_lark(text) if grammar.kind == "gbnf" else text)
    return f"start: before answer\n{grammar.before}\nanswer: {answer}\n"


def _inner_lark(text: str) -> str:
    return f"%lark {{\n{text}\n}}"


def _inner_json(text: str) -> str:
    schema = _object(text)
    lark = lark_of(schema, COMPACT) if schema else None
    if lark is not None:
        return _inner_lark(lark)
    asked = {**_defaults(schema), **_guidance(schema), "lenient": False}
    return f"%json {json.dumps({**schema, 'x-guidance': asked})}"


def _json_source(text: str) -> str:
    from llguidance import LLMatcher

    schema = _object(text)
    lark = lark_of(schema, COMPACT) if schema else None
    if lark is not None:
        return LLMatcher.grammar_from_lark(lark)
    defaults = _defaults(schema)
    return LLMatcher.grammar_from_json_schema(text, defaults=defaults, overrides={"lenient": False})


def _defaults(schema: dict[str, Any]) -> Any:
    """Options of llguidance where the schema names none."""
    if not _guidance(schema).get("whitespace_flexible"):
        return dict(COMPACT)
    return {**COMPACT, "whitespace_pattern": WHITESPACE}  # given, it makes even compact JSON flexible


def _guidance(schema: dict[str, Any]) -> dict[str, Any]:
    guidance = schema.get("x-guidance")
    return cast(dict[str, Any], guidance) if isinstance(guidance, dict) else {}


def _object(text: str) -> dict[str, Any]:
    """The schema; {} also where the library is to say what is wrong."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], schema) if isinstance(schema, dict) else {}


def one_line(message: str) -> str:
    """The message of llguidance, without the place; of a regular expression's fault the cause."""
    cause = re.search(r"^error: (.+)", message, re.MULTILINE)
    place = re.match(r"at \d+\(\d+\): ", message)
    if "coerce_one_of" in message:
        return "cases of oneOf must exclude each other: use anyOf"
    text = cause[1] if cause else message.removeprefix(place[0] if place else "").split("\n")[0]
    return text if len(text) <= MAX_DETAIL else text[:MAX_DETAIL] + "…"
