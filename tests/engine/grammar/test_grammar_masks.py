"""Masks that follow the tokens: random schedules on the chain executor, with a vocabulary of 50 letters."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from firelane.engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.masks import constrain
from firelane.engine.grammar.queue import GrammarQueue
from firelane.wire.frames import Grammar
from tests.engine.resume import resumed

VOCAB = 50
LETTERS = 'abcdefghijklmnopqrstuvwxyz0123456789 .,:"{}[]-_+!?'[:VOCAB]
STOP = LETTERS.index("!")
PATTERNS = [
    "[a-z]{3,8}",
    "(ab|ba)*x",
    "[0-9]+",
    "[a-z]{2}( [a-z]{2}){1,3}",
    "a{4}",
    "(yes|no|never)",
    "q[0-9]{0,6}",
]


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A model of fifty one-letter tokens."""
    path = tmp_path_factory.mktemp("letters")
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(LETTERS)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    data = json.loads((path / "tokenizer.json").read_text())
    data["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    data["model"]["vocab"] = {c.replace(" ", "Ġ"): i for c, i in data["model"]["vocab"].items()}
    (path / "tokenizer.json").write_text(json.dumps(data))
    return path


@pytest.fixture(scope="module")
def compiled(letters):
    """Compiled grammars by pattern."""
    compiler = GrammarCompiler(letters, VOCAB, GrammarLimits(trial_wall_s=600.0))
    found = {pattern: compiler.compile(Grammar("regex", pattern)) for pattern in PATTERNS}
    compiler.close()
    return found


class Instant(GrammarQueue):
    """A queue whose grammars are all compiled already."""

    def __init__(self, compiled: dict[str, CompiledGrammar], limits: GrammarLimits) -> None:
        self.compiled, self.limits = compiled, limits
        self._waiting, self._running = {}, []

    def compile(self, sequence, grammar, client):  # noqa: ARG002
        constrain(sequence, self.compiled[grammar.text], self.limits)
        return True


@pytest.fixture(scope="module")
def engine(driver, compiled):
    def make(limits=None, **sizes):
        return driver(prerequisites=Instant(compiled, limits or GrammarLimits()), **sizes)

    return make


def text_of(tokens: list[int]) -> str:
    return "".join(LETTERS[t] for t in tokens)


requests = st.fixed_dictionaries(
    {
        "grammar": st.sampled_from([None, None, *(Grammar("regex", p) for p in PATTERNS)]),
        "prompt": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14),
        "seed": st.integers(0, 3),
        "max_tokens": st.integers(1, 14),
        "min_tokens": st.sampled_from([0, 0, 5]),
        "stop_token_ids": st.sampled_from([[], [], [STOP], [STOP, LETTERS.index("a")]]),
    }
)
sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_output_rows": st.integers(5, 9),
        "max_num_batched_tokens": st.integers(5, 24),
        "block_size": st.sampled_from([1, 2, 4]),
        "num_blocks": st.integers(28, 40),
        "max_model_len": st.just(28),
        "prefix_cache": st.booleans(),
        "max_in_flight": st.sampled_from([1, 2]),
        "is_pipelined": st.booleans(),
    }
)
turns = st.tuples(st.lists(requests, max_size=3), st.one_of(st.none(), st.integers(0, 20)))


@settings(max_examples=60, deadline=None)
@given(sizes=sizes, schedule=st.lists(turns, min_size=1, max_size=10))
def test_random_schedules(engine, request_of, sizes, schedule) -> None:
    d, sent, aborted = engine(**sizes), [], set()
    for fields_of_turn, abort in schedule:
        for fields in fields_of_turn:
            sent.append(request_of(len(sent), **fields))
            d.submit(sent[-1])
        if abort is not None:
            aborted.add(abort)
            d.abort(abort)
        d.step()
    d.run()
    by_content: dict[object, tuple] = {}
    for request in sent:
        check(d, request, aborted)
        if d.reasons[request.id] != "abort":
            key = (request.prompt, repr(request.sampling), request.grammar)
            outcome = (d.tokens[request.id], d.reasons[request.id])
            assert by_content.setdefault(key, outcome) == outcome
            alone = engine(max_model_len=sizes["max_model_len"])
            alone.submit(request)
            alone.run()
            assert (alone.tokens[request.id], alone.reasons[request.id]) == outcome


def check(d, request, aborted) -> None:
    tokens, reason = d.tokens.get(request.id, []), d.reasons[request.id]
    if reason == "abort":
        assert request.id in aborted
        return
    assert reason in ("stop", "length")
    if request.grammar is None:
        return
    if reason == "stop" and tokens[-1] in request.sampling.stop_token_ids:
        early = tokens[-1] != STOP  # a stop token that the grammar allows, too, may come anywhere
        tokens = tokens[:-1]
        if early:
            return
        assert len(tokens) >= request.sampling.min_tokens or not may_go_on(request.grammar.text, tokens)
    if reason == "stop":
        assert re.fullmatch(request.grammar.text, text_of(tokens))


def may_go_on(pattern: str, tokens: list[int]) -> bool:
    return any(
        re.fullmatch(pattern, text_of(tokens) + letter) or pattern in ("[0-9]+", "(ab|ba)*x")
        for letter in LETTERS
    )


def test_a_complete_text_ends_at_once_without_a_stop_token(engine, request_of) -> None:
    for fields in ({}, {"stop_token_ids": [STOP]}, {"stop_token_ids": [STOP], "min_tokens": 20}):
        d = engine()
        d.submit(request_of(1, range(5), max_tokens=20, grammar=Grammar("regex", "a{4}"), **fields))
        d.run()
        assert (text_of(d.tokens[1]), d.reasons[1]) == ("aaaa", "stop")
        at = next(i for i, frame in enumerate(d.frames) if frame.finished)
        assert (d.frames[at].ids, [f.id for f in d.frames[at].finished]) == ([], [1])
        assert d.frames[at - 1].ids == [1]  # with "stop" in this frame its token would count as a stop token
        assert d.executor.steps <= 5


def test_the_last_token_allowed_may_complete_the_text(engine, request_of) -> None:
    for max_tokens, reason in ((4, "stop"), (3, "length")):
        d = engine()
        d.submit(request_of(1, range(5), max_tokens=max_tokens, grammar=Grammar("regex", "a{4}")))
        d.run()
        assert d.reasons[1] == reason


def test_where_the_text_may_end_the_stop_tokens_are_allowed(engine, request_of) -> None:
    ended = set()
    for seed in range(40):
        d = engine()
        request = request_of(
            1, [seed], seed=seed, max_tokens=9, grammar=Grammar("regex", "[0-9]+"), stop_token_ids=[STOP]
        )
        d.submit(request)
        d.run()
        ended.add(d.reasons[1])
        assert re.fullmatch("[0-9]+!?", text_of(d.tokens[1]))
    assert ended == {"stop", "length"}


def test_without_stop_tokens_a_text_that_may_go_on_goes_on(engine, request_of) -> None:
    d = engine()
    d.submit(request_of(1, range(5), max_tokens=9, grammar=Grammar("regex", "[0-9]+")))
    d.run()
    assert re.fullmatch("[0-9]{9}", text_of(d.tokens[1]))
    assert d.reasons[1] == "length"


def test_preemption_keeps_the_place_in_the_text(engine, request_of) -> None:
    d = engine(num_blocks=8, max_num_seqs=3, max_output_rows=3)
    grammar = Grammar("regex", "[a-z]{2}( [a-z]{2}){1,3}")
    d.submit(*(request_of(i, range(i, i + 4), max_tokens=20, grammar=grammar) for i in range(3)))
    d.run()
    assert d.frames[-1].stats.preemptions > 0
    for i in range(3):
        assert d.reasons[i] in ("stop", "length")
        assert re.fullmatch(grammar.text, text_of(d.tokens[i]))


def test_a_matcher_in_error_ends_its_sequence_alone(engine, request_of, alone) -> None:
    d = engine()
    plain = request_of(1, range(4), max_tokens=8)
    other = request_of(3, range(7), max_tokens=8, grammar=Grammar("regex", "a{4}"))
    d.submit(plain, request_of(2, range(6), max_tokens=8, grammar=Grammar("regex", "[0-9]+")), other)
    d.step()
    d.core.table.running[2].constraint.matcher.consume_token(LETTERS.index("x"))
    d.run()
    assert d.reasons == {1: "length", 2: "error", 3: "stop"}
    assert d.tokens[1] == alone(plain, 64)[0]
    assert text_of(d.tokens[3]) == "aaaa"


def test_a_dear_grammar_ends_its_sequence(engine, request_of) -> None:
    d = engine(GrammarLimits(token_cpu_s=0.0, slack_cpu_s=0.0))
    d.submit(request_of(1, range(4), grammar=Grammar("regex", "[0-9]+")), request_of(2, range(4)))
    d.run()
    assert d.reasons == {1: "error", 2: "length"}


def test_no_work_is_done_where_no_grammar_runs(engine, request_of) -> None:
    d = engine()
    d.submit(request_of(1, range(4), grammar=Grammar("regex", "a{4}")))
    d.run()
    d.submit(request_of(2, range(4), max_tokens=9))
    d.run()
    assert not d.core._masks._slots


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "fields", [{}, {"stop_token_ids": [STOP]}, {"stop_token_ids": [STOP], "min_tokens": 5}]
)
def test_a_resumed_text_goes_on_from_its_place(engine, request_of, pattern, fields) -> None:
    """The last cut is behind the last token: the engine died before it said that the text is complete."""
    request = request_of(1, range(5), seed=5, max_tokens=12, grammar=Grammar("regex", pattern), **fields)
    whole, d = engine(), engine(num_blocks=96)
    whole.submit(request)
    whole.run()
    tokens, reason = whole.tokens[1], whole.reasons[1]
    told = reason == "stop" and tokens[-1] != STOP  # the end has a frame of its own
    cuts = range(1, len(tokens) + told)
    d.submit(*(resumed(request, tokens[:cut], cut) for cut in cuts))
    d.run()
    assert {cut: (d.tokens.get(cut, []), d.reasons[cut]) for cut in cuts} == {
        cut: (tokens[cut:], reason) for cut in cuts
    }


def test_output_that_its_grammar_forbids_is_an_error(engine, request_of) -> None:
    d = engine()
    request = request_of(1, range(5), grammar=Grammar("regex", "a{4}"))
    d.submit(resumed(request, [LETTERS.index("x")], 1))
    d.run()
    assert d.reasons == {1: "error"}


def test_a_grammar_that_runs_out_of_states(driver, request_of, letters, caplog) -> None:
    """The request ends with what is wrong; the grammar's next one begins with new states."""
    limits = GrammarLimits(lexer_states=40)
    queue = GrammarQueue(GrammarCompiler(letters, VOCAB, limits), limits)
    d = driver(prerequisites=queue)
    grammar = Grammar("regex", "[a-z]{30,60}")
    for request_id in range(3):
        d.submit(request_of(request_id, grammar=grammar, prompt=[1], max_tokens=40))
        d.run()
        assert d.reasons[request_id] == "error"
        assert len(d.tokens[request_id]) > 10
        (message,) = [f.message for frame in d.frames for f in frame.finished if f.id == request_id]
        assert "too many states" in message
        assert message in caplog.messages[request_id]
    assert d.frames[-1].stats.grammar_failures == 3
    queue.close()


def test_a_grammar_whose_tokens_are_too_dear_says_so(engine, request_of) -> None:
    d = engine(limits=GrammarLimits(token_cpu_s=-1.0, slack_cpu_s=0.5))
    d.submit(request_of(1, grammar=Grammar("regex", "[a-z]{3,8}"), prompt=[1], max_tokens=8))
    d.run()
    (finished,) = [finished for frame in d.frames for finished in frame.finished]
    assert (finished.reason, "too much time" in finished.message) == ("error", True)
