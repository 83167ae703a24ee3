"""Texts to token ids for many clients at once, in bounded time and memory.

What cannot fit the model is refused before it is tokenised whole: a tokeniser takes up to 75 bytes for each
byte of a text and 220 for each token, and the token counts of a text's pieces add up to nearly its own.
"""

from __future__ import annotations

import array
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from firelane.errors import ContextLengthError, RequestError
from firelane.text.template_limits import MAX_CHARS
from firelane.text.tokens.tokenizer import Tokenizer

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
SLACK_TOKENS = 1024
MARGIN_TOKENS = 64
"""Tokens beside a cut, which may differ from those of the whole text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRoom:
    """Room for the texts of one request. max_tokens: texts of more are refused; limit: its name. part: what
    the request calls the text. keep: so many tokens of a text are wanted at most, its last ones or,
    `from_start`, its first ones. gone: whether nobody waits for the answer any more.
    """

    max_tokens: int
    part: str
    gone: Callable[[], bool]
    keep: int | None = None
    from_start: bool = False
    limit: str = "This model's maximum context length"

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
