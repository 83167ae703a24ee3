"""Text to token ids and back, on tokenizer.json alone. Vocabulary entries are bytes: a token may end inside a
character.

Texts of many clients become ids in bounded time and memory. What cannot fit the model is refused before it is
tokenised whole: a tokeniser takes up to 75 bytes for each byte of a text and 220 for each token, and the
token counts of a text's pieces add up to nearly its own.
"""

from __future__ import annotations

import array
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from firelane.errors import ContextLengthError, RequestError, TokenizerError
from firelane.request_limits import MAX_TOKENIZER_BYTES
from firelane.storage import read_regular
from firelane.text.template_limits import MAX_CHARS
from firelane.text.tokens.detokenize import (
    Detokenizer,
    StreamDetokenizer,
    TableDetokenizer,
    TokenBytes,
    TokenTable,
    byte_rule,
)
from firelane.text.tokens.growth import check_growth
from firelane.text.tokens.pattern_trial import check_patterns
from firelane.wire.images import ImageFormat


class Tokenizer:
    """One model's tokenizer. Not changed after construction; `encode` may be called from several threads.
    The tables of pieces fill as tokens appear; there is one for each set of special tokens that is shown.
    """

    def __init__(self, core: tokenizers.Tokenizer) -> None:
        """Raises TokenizerError where it would make texts much longer, or take very long."""
        check_growth(core)
        check_patterns(core)
        self._core = core
        added = core.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._added_ids = frozenset(added)
        vocab_size = core.get_vocab_size(with_added_tokens=True)
        self.num_ids = max([vocab_size, *(i + 1 for i in added)])
        rule = byte_rule(json.loads(core.decoder.__getstate__()) if core.decoder else None)
        self._rule = rule
        self._tables: dict[frozenset[int], TokenTable] = {}
        plain = self.token_table(frozenset())
        self.bytes_of: TokenBytes | None = None if plain is None else plain.bytes_of

    def vocabulary(self) -> dict[int, str]:
        """All tokens by their ids, as the vocabulary spells them."""
        return {i: token for token, i in self._core.get_vocab(with_added_tokens=True).items()}

    def token_table(self, visible: frozenset[int]) -> TokenTable | None:
        """The table by which tokens become text, with the special tokens `visible` shown by their names. None
        where this tokenizer's decoder does not work token by token.
        """
        if self._rule is None:
            return None
        found = self._tables.get(visible)
        if found is None:
            found = self._tables[visible] = TokenTable(
                self._core.id_to_token, self._rule, self.special_ids, visible
            )
        return found

    def detokenizer(self, visible_special_ids: frozenset[int] | None = frozenset()) -> Detokenizer:
        """A detokenizer of one sequence. visible_special_ids: special tokens that are shown by their names,
        None: all of them."""
        visible = self.special_ids if visible_special_ids is None else visible_special_ids
        table = self.token_table(visible)
        return StreamDetokenizer(self._core, visible) if table is None else TableDetokenizer(table)

    @property
    def core(self) -> tokenizers.Tokenizer:
        return self._core

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; with special tokens, what the tokenizer's post-processor adds (such as BOS). Raises
        RequestError where the tokenizer cannot take the text.
        """
        return self._encode(text, special=add_special_tokens).ids

    def encode_pair(self, first: str, second: str, longest: int | None = None) -> tuple[list[int], int]:
        """Token ids of a pair of texts, with what the tokenizer adds between them and around; and the index
        at which the second has a type of its own, 0 where it has none. longest: tokens are left out of the
        second text's end until there are so many. Raises RequestError as encode()."""
        one, two = self._encode(first, special=False), self._encode(second, special=False)
        if longest is not None:
            added = self._core.num_special_tokens_to_add(is_pair=True)
            two.truncate(max(1, longest - added - len(one.ids)))
        joined = self._core.post_process(one, two, add_special_tokens=True)
        types = joined.type_ids
        return joined.ids, types.index(1) if 1 in types else 0

    def count(self, text: str) -> int:
        """The number of tokens of a text, without special ones."""
        return len(self._encode(text, special=False))

    def _encode(self, text: str, *, special: bool) -> tokenizers.Encoding:
        try:
            # The library's only form that keeps no offsets: a fifth to a third faster.
            (encoding,) = self._core.encode_batch_fast([text], add_special_tokens=special)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's, which is no Exception
                raise
            raise RequestError(f"this model's tokenizer fails on the text: {_one_line(error)}") from None
        return encoding

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return self._core.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_of(self, name: str) -> int | None:
        """The id of the vocabulary entry of this name, None where there is none."""
        return self._core.token_to_id(name)

    def is_added(self, name: str) -> bool:
        """Whether a token of this name was added to the vocabulary, special or not."""
        return self._core.token_to_id(name) in self._added_ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token as reports show it: special tokens by name, unknown ids empty."""
        if token in self.special_ids or self.bytes_of is None:
            return (self._core.id_to_token(token) or "").encode()
        return self.bytes_of[token]

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode("utf-8", "replace")

    def check_vocab(self, vocab_size: int | None) -> None:
        """Raises TokenizerError when the tokenizer knows ids that the model has no embedding for. None: not
        known yet."""
        if vocab_size is not None and self.num_ids > vocab_size:
            raise TokenizerError(
                f"the tokenizer has {self.num_ids} ids but the model's vocabulary has {vocab_size}: "
                "tokenizer.json is not of this model"
            )


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """Raises TokenizerError when tokenizer.json is missing or damaged."""
    path = model_dir / "tokenizer.json"
    if not path.exists():
        raise TokenizerError(
            f"no tokenizer.json in {model_dir}, nor a tiktoken.model or tekken.json: add the one that the "
            "model was trained with"
        )
    try:
        core = tokenizers.Tokenizer.from_buffer(read_regular(path, MAX_TOKENIZER_BYTES))
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}): make it readable") from error
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} is not a tokenizer: {_one_line(error)}; fetch it again") from error
    core.no_truncation()
    core.no_padding()
    return Tokenizer(core)


def _one_line(error: Any) -> str:
    return " ".join(str(error).split())[:200]


COUNTED_TOKENS = 1 << 18
"""Tokens of a text whose tokens are only wanted to be known, where the model's context is not longer."""
SHORT_CHARS = 16 << 10
"""Texts that are tokenised at once, on the event loop."""
SHORT_IDS = 64 << 10
"""Token ids that are packed at once, on the event loop."""
PIECE_CHARS = 64 << 10
WHOLE_BYTES = 512 << 10
"""Text that may have a token for each byte and still takes little memory."""
MAX_TEXT_BYTES = 2 << 20
"""Bytes of one text at most, whatever tokens it has; more where the model's context has more than a token for
8 bytes."""
PAIRS_AT_ONCE = 16
"""Pairs of texts that are tokenised in one go."""
SLACK_TOKENS = 1024
MARGIN_TOKENS = 64
"""Tokens beside a cut, which may differ from those of the whole text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRoom:
    """Room for the texts of one request. max_tokens: texts of more are refused; limit: its name. part: what
    the request calls the text. keep: so many tokens of a text are wanted at most, its last ones or,
    `from_start`, its first ones. gone: whether nobody waits for the answer any more. images: how the model
    takes them; None: it takes none.
    """

    max_tokens: int
    part: str
    gone: Callable[[], bool]
    keep: int | None = None
    from_start: bool = False
    limit: str = "This model's maximum context length"
    images: ImageFormat | None = None

    def check_gone(self) -> None:
        """Raises RequestError, which nobody reads."""
        if self.gone():
            raise RequestError("the client has gone")

    def too_long(self) -> ContextLengthError:
        return ContextLengthError(
            f"{self.limit} is {self.max_tokens} tokens. However, your {self.part} resulted in more. "
            f"Please reduce the length of the {self.part}.",
            param=self.part,
        )

    def check_chars(self, chars: int) -> None:
        """Before a text is rendered of messages with so many characters. Raises ContextLengthError."""
        if self.keep is None or self.keep > self.max_tokens:
            self.check_bytes(chars)
        elif chars > MAX_CHARS:
            raise ContextLengthError(
                f"your {self.part} has {chars} characters: at most {MAX_CHARS} are taken. "
                f"Please reduce the length of the {self.part}.",
                param=self.part,
            )

    def check_bytes(self, size: int) -> None:
        """Raises ContextLengthError."""
        most = max(MAX_TEXT_BYTES, 8 * self.max_tokens)
        if size > most:
            raise ContextLengthError(
                f"{self.limit} is {self.max_tokens} tokens. However, your {self.part} has {size} bytes of "
                f"text: at most {most} are taken. Please reduce the length of the {self.part}.",
                param=self.part,
            )


class TextPair(NamedTuple):
    """Two texts that a model reads as one."""

    first: str
    second: str


class PackedPair(NamedTuple):
    """The packed ids of a pair. second_text: as in NewRequest."""

    packed: bytes
    second_text: int


class TextEncoder:
    """The encoder of one model's texts. Of long texts one at a time is tokenised, and one of very long ones
    beside it, off the event loop."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._long = asyncio.Lock()
        self._very_long = asyncio.Lock()

    async def encode(self, texts: Sequence[str], room: TextRoom, *, special: bool) -> list[bytes]:
        """Packed ids of each text; of one that is longer than `room.keep`, more than those wanted. special:
        with what the tokenizer adds. Raises ContextLengthError, and RequestError where a client has gone.
        """
        if sum(map(len, texts)) <= SHORT_CHARS:
            return self._packed(texts, special)
        found: list[bytes] = []
        for group in _groups(texts):
            room.check_gone()
            if len(group) == 1:
                found.append(await self._encode(group[0], room, special))
            else:
                async with self._long:
                    found += await asyncio.to_thread(self._packed, group, special)
            if room.keep is None and any(len(one) > 4 * room.max_tokens for one in found[-len(group) :]):
                raise room.too_long()
        return found

    async def encode_pairs(self, pairs: Sequence[TextPair], room: TextRoom) -> list[PackedPair]:
        """Packed ids of each pair, with what the tokenizer adds. Where `room.keep` says so, the second text
        is cut. Raises ContextLengthError, and RequestError where a client has gone."""
        for pair in pairs:
            room.check_bytes(sum(len(text.encode("utf-8", "surrogatepass")) for text in pair))
        if sum(len(text) for pair in pairs for text in pair) <= SHORT_CHARS:
            return self._packed_pairs(pairs, room.keep)
        found: list[PackedPair] = []
        for first in range(0, len(pairs), PAIRS_AT_ONCE):
            room.check_gone()
            async with self._long:
                group = pairs[first : first + PAIRS_AT_ONCE]
                found += await asyncio.to_thread(self._packed_pairs, group, room.keep)
        return found

    def _packed_pairs(self, pairs: Sequence[TextPair], keep: int | None) -> list[PackedPair]:
        encoded = (self._tokenizer.encode_pair(*pair, keep) for pair in pairs)
        return [PackedPair(pack_ids(ids), second) for ids, second in encoded]

    async def _encode(self, text: str, room: TextRoom, special: bool) -> bytes:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        cut = room.keep is not None and room.keep <= room.max_tokens
        async with self._very_long if size > WHOLE_BYTES else self._long:
            room.check_gone()
            if room.keep is not None and cut:
                return await self._end(text, room, room.keep, special)
            if size > max(PIECE_CHARS, min(WHOLE_BYTES, 4 * room.max_tokens)):
                room.check_bytes(size)
                await self._check_count(text, room)
            (packed,) = await asyncio.to_thread(self._packed, [text], special)
            return packed

    async def _check_count(self, text: str, room: TextRoom) -> None:
        """By pieces. Where they are cut a text may have some tokens more than in one."""
        tokens, most = 0, room.max_tokens + room.max_tokens // 4 + SLACK_TOKENS
        for start in range(0, len(text), PIECE_CHARS):
            room.check_gone()
            tokens += await asyncio.to_thread(self._tokenizer.count, text[start : start + PIECE_CHARS])
            if tokens > most:
                raise room.too_long()

    async def _end(self, text: str, room: TextRoom, keep: int, special: bool) -> bytes:
        """At least `keep` tokens of the text's end, or start, if it has as many."""
        chars = keep + PIECE_CHARS
        while True:
            room.check_gone()
            piece = text[:chars] if room.from_start else text[-chars:]
            (packed,) = await asyncio.to_thread(self._packed, [piece], special)
            enough = len(packed) // 4 >= keep + MARGIN_TOKENS
            if enough or len(piece) == len(text) or 4 * chars > MAX_TEXT_BYTES:
                return packed
            chars *= 4

    def _packed(self, texts: Sequence[str], special: bool) -> list[bytes]:
        encode = self._tokenizer.encode
        return [pack_ids(encode(text, add_special_tokens=special)) for text in texts]


async def pack_prompts(prompts: Sequence[Sequence[int]]) -> list[bytes]:
    """Packed ids of each; of many, off the event loop."""
    if sum(map(len, prompts)) <= SHORT_IDS:
        return [pack_ids(ids) for ids in prompts]
    return await asyncio.to_thread(lambda: [pack_ids(ids) for ids in prompts])


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32, the form of NewRequest.prompt."""
    packed = array.array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> memoryview[int]:
    """int32 [tokens], a view of the bytes where that is possible."""
    if sys.byteorder == "little":
        return memoryview(packed).cast("i")
    ids = array.array("i", packed)
    ids.byteswap()
    return memoryview(ids)


def _groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts that follow each other, of PIECE_CHARS together at most, or one that has more."""
    begin = chars = 0
    for index, text in enumerate(texts):
        if index > begin and chars + len(text) > PIECE_CHARS:
            yield texts[begin:index]
            begin, chars = index, 0
        chars += len(text)
    yield texts[begin:]
