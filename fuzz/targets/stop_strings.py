"""Stop strings and the text of tokens: a line of stop strings with tabs between them, then the text's bytes.
In pieces it is cut at the first stop string as a whole text would be; bytes of a character may come apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from firelane.text.tokens.detokenize import SequenceText, StopMatcher, TableDetokenizer
from fuzz.pieces import pieces
from fuzz.target import Target


def run(data: bytes) -> None:
    line, _, rest = data.partition(b"\n")
    stops = [stop for stop in line.decode(errors="replace").split("\t") if stop][:8]
    text = rest.decode(errors="replace")
    if stops:
        for keep in (False, True):
            expected = _cut(text, stops, keep=keep)
            for size in (1, 3, max(1, len(text))):
                assert _matched(text, stops, size, keep=keep) == expected, f"pieces of {size} letters differ"
    for size in (1, 2, 5):
        _detokenize(rest, stops, size)


def _cut(text: str, stops: list[str], *, keep: bool) -> str:
    """The text up to the stop string that is complete first; of several the one that begins first."""
    for end in range(len(text) + 1):
        found = [(end - len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            at, stop = min(found)
            return text[: at + len(stop) if keep else at]
    return text


def _matched(text: str, stops: list[str], size: int, *, keep: bool) -> str:
    matcher, out = StopMatcher(stops, keep=keep), ""
    for part in pieces(text, size):
        more, stopped = matcher.push(part)
        out += more
        if stopped:
            assert matcher.found in stops
            return out
    return out + matcher.flush()


def _detokenize(data: bytes, stops: list[str], size: int) -> None:
    """Tokens of so many bytes each."""
    tokens = pieces(data, size)
    table = SimpleNamespace(bytes_of=tokens, texts_of=[_text(token) for token in tokens])
    one, all_at_once = TableDetokenizer(cast(Any, table)), TableDetokenizer(cast(Any, table))
    text = "".join(map(one.push, range(len(tokens)))) + one.flush()
    assert text == data.decode(errors="replace")
    assert all_at_once.push_all(list(range(len(tokens)))) + all_at_once.flush() == text
    sequence, out = SequenceText(TableDetokenizer(cast(Any, table)), stops), ""
    for number in range(len(tokens)):
        more, stopped = sequence.push(number)
        out += more
        if stopped:
            break
    else:
        out += sequence.flush()[0]
    assert text.startswith(out)


def _text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


TARGET = Target(
    run=run, most_bytes=256, words=(b"\t", b"\n", b"aab", b"aa", b"\xf0\x9f\x94\xa5", b"\xc3", b"\xe2\x82")
)
