"""A request as another engine would get it after some of its tokens."""

from __future__ import annotations

import msgspec
import numpy as np

from firelane.wire.frames import NewRequest


def resumed(request: NewRequest, output: list[int], request_id: int) -> NewRequest:
    """The same request after `output`."""
    return msgspec.structs.replace(
        request,
        id=request_id,
        prompt=request.prompt + np.array(output, np.int32).tobytes(),
        output_start=len(request.prompt) // 4,
    )
