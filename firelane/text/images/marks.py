"""Marks: what stands for images in the text of a conversation, until the tokens are known."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from firelane.api.chat import ChatRequest, ContentPart, Message, refuse_newest
from firelane.errors import RequestError
from firelane.text.images.image_process import ImageDecoder
from firelane.text.images.sources import image_source
from firelane.text.tokens.tokenizer import TextRoom, pack_ids
from firelane.wire.images import MOST_IMAGES, Image, ImageFormat, image_words


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkedImages:
    """The images of a conversation, in its order, and the beginning of their marks, which no client knows: so
    marks that a text has of its own are text."""

    mark: str
    images: Sequence[Image]
    format: ImageFormat

    def name(self, index: int) -> str:
        """The mark of an image."""
        return f"{self.mark}n{index}e"

    def pieces(self, text: str) -> tuple[list[str], list[Image]]:
        """The texts before, between and behind the images, and these in the order in which the text shows
        them."""
        found = re.split(f"{self.mark}n([0-9]+)e", text)
        return found[::2], [self.images[int(index)] for index in found[1::2]]

    def joined(self, texts: Sequence[bytes], images: Sequence[Image]) -> tuple[bytes, list[Image]]:
        """The prompt of packed ids, and the images with their places in it."""
        made, placed = bytearray(texts[0]), list[Image]()
        for image, behind in zip(images, texts[1:], strict=True):
            made += pack_ids([self.format.start])
            placed.append(msgspec.structs.replace(image, start=len(made) // 4))
            made += image_words(image.digest, self.format.rows(image.height, image.width))
            made += pack_ids([self.format.end])
            made += behind
        return bytes(made), placed


def check_unread(request: ChatRequest) -> None:
    """A model that takes no images leaves out those of earlier turns. Raises RequestError where the newest
    message has one."""
    last = request.messages[-1]
    if last.role == "user" and last.images:
        raise refuse_newest(last.images[0].type)


async def marked(
    request: ChatRequest, room: TextRoom, decoder: ImageDecoder
) -> tuple[ChatRequest, MarkedImages | None]:
    """The request with marks in place of its images, which are decoded. Raises RequestError for images that
    are not taken, QueueTimeoutError and ProcessDeadError as the decoder does."""
    parts = [part for message in request.messages for part in message.images]
    if not parts:
        return request, None
    if room.images is None:
        check_unread(request)
        return request, None
    if len(parts) > MOST_IMAGES:
        raise RequestError(
            f"the conversation has {len(parts)} images: at most {MOST_IMAGES} are taken; leave earlier ones "
            "out",
            param="messages",
            code="invalid_image",
        )
    images = list[Image]()
    for where, part in _named(request.messages):
        room.check_gone()
        images.append(await decoder.decode(image_source(part.image_url, where), room.images, where))
    found = MarkedImages(mark=f"image{secrets.token_hex(16)}", images=images, format=room.images)
    names = iter([found.name(index) for index in range(len(images))])
    messages = [_marked(message, names) if message.images else message for message in request.messages]
    return msgspec.structs.replace(request, messages=messages), found


def _named(messages: Sequence[Message]) -> Iterator[tuple[str, ContentPart]]:
    """Parts with images, and their names in errors."""
    for number, message in enumerate(messages):
        if isinstance(message.content, list):
            for index, part in enumerate(message.content):
                if part.has_image:
                    yield f"messages[{number}].content[{index}]", part


def _marked(message: Message, names: Iterator[str]) -> Message:
    """The message as one text. Nothing stands between an image and a text: models have marks of their own."""
    assert isinstance(message.content, list)
    text, was_text = "", False
    for part in message.content:
        gap = "\n" if was_text and not part.has_image and message.role != "assistant" else ""
        text += gap + (next(names) if part.has_image else part.shown("messages"))
        was_text = not part.has_image
    return msgspec.structs.replace(message, content=text)
