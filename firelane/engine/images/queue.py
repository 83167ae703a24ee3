"""ImageQueue: requests whose images are being encoded, and rows of images that are kept."""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from firelane.engine.images.encoder import ImageEncoder
from firelane.engine.sequences.places import ImageSpan
from firelane.engine.sequences.prerequisites import Prerequisites, Waited
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.sequences.sequence_images import SequenceImages
from firelane.errors import FirelaneError, QueueFullError, RequestError
from firelane.wire.frames import NewRequest
from firelane.wire.images import ASPECT, MOST_IMAGES, Image

F32 = NDArray[np.float32]
MOST_WAITING = 64
"""Images that wait to be encoded; those of further requests are refused."""
KEPT_BYTES = 256 << 20
"""Bytes of rows of images that were asked for lately."""
log = logging.getLogger(__name__)


@dataclass(eq=False)
class _ImageWait:
    """The wait of one sequence for its images, until it is ready for anything else. jobs: of each image."""

    sequence: Sequence
    jobs: list[Future[F32]]
    is_ready: bool


class ImageQueue(Prerequisites):
    """Prerequisites: those of `inner`, and rows of images. Used by the engine's thread alone, which never
    waits for the encoder. An image that several requests bring is encoded once."""

    def __init__(self, inner: Prerequisites, encoder: ImageEncoder) -> None:
        """Owns neither."""
        self._inner, self._encoder, self._format = inner, encoder, encoder.format
        self._waits: dict[int, _ImageWait] = {}
        self._jobs: dict[bytes, Future[F32]] = {}
        self._kept: OrderedDict[bytes, F32] = OrderedDict()
        self._kept_bytes = 0

    @property
    def is_waiting(self) -> bool:
        return self._inner.is_waiting or bool(self._waits)

    def prepare(self, request: NewRequest) -> NewRequest:
        if not request.images:
            return request
        tokens = np.frombuffer(request.prompt[: len(request.prompt) // 4 * 4], "<i4").copy()
        is_image = tokens < 0
        for span in self._spans(request.images, is_image):
            is_image[span.start : span.stop] = False
            tokens[span.start : span.stop] = self._format.image
        if is_image.any():
            raise RequestError(f"token id {tokens[is_image][0]} stands for an image that is not there")
        if request.sampling.prompt_logprobs >= 0:
            raise RequestError(
                "log-probabilities of a prompt with images are not supported: leave them out",
                param="prompt_logprobs",
            )
        return msgspec.structs.replace(request, prompt=tokens.tobytes(), images=[])

    def add(self, sequence: Sequence, request: NewRequest) -> bool:
        if self._jobs:
            self._keep_done()
        if request.images and len(self._jobs) + len(request.images) > MOST_WAITING:
            raise QueueFullError(f"{MOST_WAITING} images wait to be encoded: try again later")
        is_ready = self._inner.add(sequence, request)
        if not request.images:
            return is_ready
        words = np.frombuffer(request.prompt, "<i4")
        spans = [self._span(image) for image in request.images]
        for span in spans:
            sequence.chain.have_image(span.start, words[span.start : span.stop])
        sequence.images = SequenceImages(spans)
        jobs = [self._job(image) for image in request.images]
        if all(job.done() and not job.exception() for job in jobs):
            sequence.images.rows = [job.result() for job in jobs]
            return is_ready
        self._waits[sequence.id] = _ImageWait(sequence, jobs, is_ready)
        return False

    def take(self) -> list[Waited]:
        ready = list[Waited]()
        for waited in self._inner.take():
            wait = self._waits.get(waited.sequence.id)
            if wait is not None and waited.error is None:
                wait.is_ready = True
                continue
            self._waits.pop(waited.sequence.id, None)
            ready.append(waited)
        self._keep_done()
        for wait in [wait for wait in self._waits.values() if all(job.done() for job in wait.jobs)]:
            error = next((error for job in wait.jobs if (error := job.exception())), None)
            if error is None and not wait.is_ready:
                continue
            del self._waits[wait.sequence.id]
            if error is None:
                assert wait.sequence.images is not None
                wait.sequence.images.rows = [job.result() for job in wait.jobs]
            elif self._inner.get(wait.sequence.id) is wait.sequence:
                self._inner.abort(wait.sequence)
            ready.append(Waited(wait.sequence, None if error is None else _failed(error)))
        return ready

    def get(self, request_id: int) -> Sequence | None:
        wait = self._waits.get(request_id)
        return wait.sequence if wait else self._inner.get(request_id)

    def waiting(self) -> list[Sequence]:
        inner = [s for s in self._inner.waiting() if s.id not in self._waits]
        return inner + [wait.sequence for wait in self._waits.values()]

    def abort(self, sequence: Sequence) -> None:
        """Images that nobody waits for any more, and that are not begun, are not encoded."""
        gone = self._waits.pop(sequence.id, None)
        if self._inner.get(sequence.id) is sequence:
            self._inner.abort(sequence)
        wanted = {id(job) for wait in self._waits.values() for job in wait.jobs}
        for digest, job in list(self._jobs.items()):
            if gone is not None and id(job) not in wanted and job.cancel():
                del self._jobs[digest]

    def _spans(self, images: list[Image], is_image: NDArray[np.bool_]) -> list[ImageSpan]:
        """Raises RequestError for images that cannot be where they are said to be."""
        if len(images) > MOST_IMAGES:
            raise RequestError(f"the request has {len(images)} images: at most {MOST_IMAGES} are taken")
        spans, end = [self._span(image) for image in images], 0
        for image, span in zip(images, spans, strict=True):
            height, width, factor = image.height, image.width, self._format.factor
            fits = min(height, width) > 0 and height % factor == width % factor == 0
            fits = fits and max(height, width) <= ASPECT * min(height, width)
            if not fits or height * width > self._format.max_pixels:
                raise RequestError(f"an image of {width} * {height} pixels is not taken")
            if len(image.pixels) != 3 * height * width:
                raise RequestError(f"an image of {width} * {height} pixels has {len(image.pixels)} bytes")
            if (
                not end <= span.start <= span.stop <= len(is_image)
                or not is_image[span.start : span.stop].all()
            ):
                raise RequestError(f"an image is to stand at token {span.start}, where there is none")
            end = span.stop
        return spans

    def _span(self, image: Image) -> ImageSpan:
        factor = self._format.factor
        return ImageSpan(image.start, image.height // factor, image.width // factor)

    def _job(self, image: Image) -> Future[F32]:
        digest = image.digest
        rows = self._kept.get(digest)
        if rows is not None:
            self._kept.move_to_end(digest)
            known: Future[F32] = Future()
            known.set_result(rows)
            return known
        job = self._jobs.get(digest)
        if job is None:
            pixels = np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3)
            job = self._jobs[digest] = self._encoder.thread.submit(self._encoder.rows, pixels)
        return job

    def _keep_done(self) -> None:
        for digest, job in [(digest, job) for digest, job in self._jobs.items() if job.done()]:
            del self._jobs[digest]
            if job.exception() is not None:
                continue
            self._kept[digest] = job.result()
            self._kept_bytes += job.result().nbytes
            while self._kept_bytes > KEPT_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes


def with_images(inner: Prerequisites, encoder: ImageEncoder | None) -> Prerequisites:
    """The prerequisites of an engine, with its images where it takes any."""
    return inner if encoder is None else ImageQueue(inner, encoder)


def _failed(error: BaseException) -> FirelaneError:
    if isinstance(error, FirelaneError):
        return error
    log.error("image_not_encoded error=%r", error)
    return FirelaneError(f"an image cannot be encoded: internal error: {type(error).__name__}: {error}")
