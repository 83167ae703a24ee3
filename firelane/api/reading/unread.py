"""Parts of conversations that models here cannot read: images, sounds, files, items of other servers.

In a history they are left out, and words stand in their place: refusing them would end a conversation that
began on another server, or in which a tool gave an image. In the newest message of a user they are refused:
the answer would be about something that the model has not seen.
"""

from __future__ import annotations

from firelane.errors import RequestError

_MEDIA = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
    "document": "document",
}
MAX_NAME = 40
"""Characters of a type's name, which a client may have made up."""


def in_place_of(kind: str) -> str:
    """The words in place of a part of this type."""
    name = _MEDIA.get(kind)
    if name is not None:
        return f"[{name} left out: this model reads text only]"
    return f"[{' '.join(kind[:MAX_NAME].split('_'))} left out]"


def refuse_newest(kind: str) -> RequestError:
    """The error for a part of this type in the newest message."""
    return RequestError(
        f"the last message has a part of type '{kind[:MAX_NAME]}', but this model reads text only: leave the "
        "part out, or ask a model that reads it",
        param="messages",
        code="unsupported_parameter",
    )
