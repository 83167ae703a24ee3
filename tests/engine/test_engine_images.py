"""Images through the engine on the CPU, against transformers: alone and beside others, in any chunks, again,
and where an engine goes on with what another one has begun."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firelane.engine.core import NO_PREREQUISITES, EngineCore
from firelane.engine.images.encoder import ImageEncoder
from firelane.engine.images.load import load_encoder
from firelane.engine.images.queue import ImageQueue
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.errors import UsageError
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame
from firelane.wire.images import Image, digest_of, image_words
from tests.engine.driver import ListChannel
from tests.models.test_multimodal_checkpoints import EXPERTS
from tests.models.towers.tower_run import (
    FACTOR,
    IMAGE_TOKEN,
    WIDE_TOWER,
    oracle_inputs,
    picture,
    save_toy,
)

SIZES = [(64, 80), (96, 96)]
TOKENS = 12
PROCESSOR = '{"size": {"shortest_edge": 4096, "longest_edge": 65536}}'


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    directory = tmp_path_factory.mktemp("qwen3_vl")
    model = save_toy(directory)
    (directory / "preprocessor_config.json").write_text(PROCESSOR)
    return directory, model


class Engine:
    """An engine that takes images, stepped by hand."""

    def __init__(self, directory: Path, cache_dir: Path, **sizes: Any) -> None:
        settings: dict[str, Any] = {"kv_cache_bytes": 8 << 20, "max_num_seqs": 4, "max_model_len": 512}
        self.config = EngineConfig(
            model_dir=directory, threads=2, cache_dir=cache_dir, images=True, **(settings | sizes)
        )
        self.executor = load_executor(self.config, lambda *_: None)
        encoder = load_encoder(self.config, self.executor, lambda *_: None)
        assert encoder is not None
        self.encoder: ImageEncoder = encoder
        self.channel = ListChannel()
        self.queue = ImageQueue(NO_PREREQUISITES, self.encoder)
        self.core = EngineCore(self.executor, self.channel, prerequisites=self.queue)

    def run(self, *requests: NewRequest) -> dict[int, list[int]]:
        """The tokens of each; steps until all have ended."""
        for request in requests:
            self.core.submit(request)
        left, begun = {request.id for request in requests}, time.monotonic()
        while left:
            self.core.step()
            self.core.check_integrity()
            left -= {one.id for frame in self._frames() for one in frame.finished}
            assert time.monotonic() < begun + 60, self.channel.frames
        found: dict[int, list[int]] = {request.id: [] for request in requests}
        for frame in self._frames():
            for request_id, token, _ in frame.each_token():
                if request_id in found:
                    found[request_id].append(token)
        return found

    def cached(self, request_id: int) -> int:
        """Tokens of its prompt that came from the prefix cache."""
        return next(s.cached_tokens for frame in self._frames() for s in frame.started if s.id == request_id)

    def logprobs(self, request_id: int) -> list[float]:
        return [p.logprob for frame in self._frames() for p in frame.logprobs if p.id == request_id]

    def _frames(self) -> list[StepFrame]:
        return [frame for frame in self.channel.frames if isinstance(frame, StepFrame)]

    def close(self) -> None:
        self.encoder.release()
        self.executor.release()


@pytest.fixture(scope="module")
def engine(toy: tuple[Path, torch.nn.Module], kernel_cache: Path) -> Iterator[Engine]:
    made = Engine(toy[0], kernel_cache)
    yield made
    made.close()


def asked(request_id: int, parts: list[int | np.ndarray], **fields: Any) -> NewRequest:
    """parts: seeds of 7 tokens of text each, and pictures."""
    prompt, images = b"", list[Image]()
    for part in parts:
        if isinstance(part, int):
            prompt += np.random.default_rng(part).integers(9, 250, 7, np.int32).tobytes()
            continue
        height, width = part.shape[:2]
        digest = digest_of(height, width, part.tobytes())
        images.append(Image(len(prompt) // 4, height, width, part.tobytes()))
        prompt += image_words(digest, height * width // FACTOR**2)
    sampling = fields.pop("sampling", Sampling(temperature=0.0, max_tokens=TOKENS, logprobs=0))
    return NewRequest(id=request_id, prompt=prompt, sampling=sampling, images=images, **fields)


def greedy(model: torch.nn.Module, request: NewRequest) -> tuple[list[int], list[float]]:
    """Tokens of transformers, and their log-probabilities."""
    ids = np.frombuffer(request.prompt, "<i4").astype(np.int64)
    ids = np.where(ids < 0, IMAGE_TOKEN, ids)
    pictures = [np.frombuffer(i.pixels, np.uint8).reshape(i.height, i.width, 3) for i in request.images]
    inputs = oracle_inputs(pictures) if pictures else {}
    tokens, logprobs = list[int](), list[float]()
    for _ in range(TOKENS):
        text = torch.tensor([[*ids, *tokens]])
        kinds = (text == IMAGE_TOKEN).long()
        with torch.no_grad():
            logits = model(text, mm_token_type_ids=kinds, **inputs).logits[0, -1]
        tokens.append(int(logits.argmax()))
        logprobs.append(float(logits.log_softmax(-1)[tokens[-1]]))
    return tokens, logprobs


PROMPTS: dict[str, list[int | np.ndarray]] = {
    "one": [1, picture(1, *SIZES[0]), 2],
    "another": [1, picture(2, *SIZES[0]), 2],
    "first": [picture(3, *SIZES[1]), 3],
    "two": [1, picture(1, *SIZES[0]), 2, picture(2, *SIZES[1]), 3, 4],
    "text": [5, 6, 7],
}


def test_tokens_are_those_of_transformers(toy: tuple[Path, torch.nn.Module], engine: Engine) -> None:
    found = dict[str, list[int]]()
    for number, (name, parts) in enumerate(PROMPTS.items()):
        request = asked(number, parts)
        found[name] = engine.run(request)[number]
        want, logprobs = greedy(toy[1], request)
        assert found[name] == want, name
        np.testing.assert_allclose(engine.logprobs(number), logprobs, rtol=0, atol=1e-4)
    assert len({tuple(tokens) for tokens in found.values()}) == len(found)


def test_heads_of_72_and_experts(tmp_path: Path, kernel_cache: Path) -> None:
    """Towers of the larger models have such heads; their language models have experts."""
    model = save_toy(tmp_path, vision=WIDE_TOWER, experts=EXPERTS)
    (tmp_path / "preprocessor_config.json").write_text(PROCESSOR)
    engine = Engine(tmp_path, kernel_cache)
    for number, name in enumerate(("one", "another", "text")):
        request = asked(number, PROMPTS[name])
        tokens, logprobs = greedy(model, request)
        assert engine.run(request)[number] == tokens, name
        np.testing.assert_allclose(engine.logprobs(number), logprobs, rtol=0, atol=1e-4)
    engine.close()


def test_company_chunks_and_engines_change_nothing(
    toy: tuple[Path, torch.nn.Module], engine: Engine, kernel_cache: Path
) -> None:
    """To the bit: another engine, in steps of 16 tokens, all at once."""
    alone = {name: engine.run(asked(i, p, salt=b"a")) for i, (name, p) in enumerate(PROMPTS.items(), 100)}
    bits = {name: engine.logprobs(i) for i, name in enumerate(PROMPTS, 100)}
    other = Engine(toy[0], kernel_cache, max_num_batched_tokens=16)
    together = other.run(*(asked(i, parts) for i, parts in enumerate(PROMPTS.values(), 100)))
    for number, name in enumerate(PROMPTS, 100):
        assert together[number] == alone[name][number], name
        assert other.logprobs(number) == bits[name], name
    other.close()


def test_the_same_image_again_costs_no_step_of_the_tower(engine: Engine) -> None:
    parts = [11, picture(9, *SIZES[1]), 12]
    first = engine.run(asked(200, parts, salt=b"again"))[200]
    steps = engine.encoder.steps
    assert engine.run(asked(201, parts, salt=b"again"))[201] == first
    assert engine.cached(201) >= SIZES[1][0] * SIZES[1][1] // FACTOR**2
    assert engine.run(asked(202, [13, *parts], salt=b"other"))[202]
    assert engine.encoder.steps == steps


def test_pages_of_another_image_are_not_taken(engine: Engine) -> None:
    """The same text and size: its pages are named by what it shows."""
    engine.run(asked(210, [21, picture(20, *SIZES[1]), 22], salt=b"n"))
    changed = picture(20, *SIZES[1])
    changed[-1, -1] ^= 255
    want = engine.run(asked(211, [21, changed, 22], salt=b"m"))[211]
    logprobs = engine.logprobs(211)
    assert engine.run(asked(212, [21, changed, 22], salt=b"n"))[212] == want
    assert engine.cached(212) == 0
    assert engine.logprobs(212) == logprobs


def test_another_engine_goes_on_with_the_very_bytes(
    toy: tuple[Path, torch.nn.Module], engine: Engine, kernel_cache: Path
) -> None:
    sampling = Sampling(temperature=1.0, seed=5, max_tokens=TOKENS)
    request = asked(220, PROMPTS["two"], sampling=sampling)
    whole = engine.run(request)[220]
    begun = np.array(whole[:5], "<i4").tobytes()
    resumed = NewRequest(
        id=221,
        prompt=request.prompt + begun,
        sampling=sampling,
        images=request.images,
        output_start=len(request.prompt) // 4,
    )
    other = Engine(toy[0], kernel_cache)
    assert other.run(resumed)[221] == whole[5:]
    other.close()


def with_pixels(image: Image, **fields: Any) -> Image:
    return Image(**({"start": image.start, "height": image.height, "width": image.width} | fields))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"height": 60, "pixels": bytes(60 * 80 * 3)}, "not taken"),
        ({"height": 8 * 80, "width": 8 * 100, "pixels": b""}, "not taken"),
        ({"height": 0, "pixels": b""}, "not taken"),
        ({"pixels": bytes(64 * 80 * 3 - 1)}, "bytes"),
        ({"start": 6, "pixels": bytes(64 * 80 * 3)}, "where there is none"),
        ({"start": 80, "pixels": bytes(64 * 80 * 3)}, "where there is none"),
        ({"start": -1, "pixels": bytes(64 * 80 * 3)}, "where there is none"),
    ],
)
def test_images_that_are_refused(engine: Engine, change: dict[str, Any], says: str) -> None:
    request = asked(300, [1, picture(1, *SIZES[0]), 2])
    image = with_pixels(request.images[0], **change)
    engine.core.submit(NewRequest(id=300, prompt=request.prompt, sampling=request.sampling, images=[image]))
    rejected = engine.channel.frames[-1]
    assert isinstance(rejected, Rejected)
    assert says in rejected.message


def test_words_without_an_image_and_scores_of_prompts_are_refused(engine: Engine) -> None:
    request = asked(310, [1, picture(1, *SIZES[0]), 2])
    engine.core.submit(NewRequest(id=310, prompt=request.prompt, sampling=Sampling()))
    assert "not in the vocabulary" in engine.channel.frames[-1].message
    more = NewRequest(id=311, prompt=request.prompt * 2, sampling=Sampling(), images=request.images)
    engine.core.submit(more)
    assert "an image that is not there" in engine.channel.frames[-1].message
    scored = asked(312, PROMPTS["one"], sampling=Sampling(prompt_logprobs=1))
    engine.core.submit(scored)
    assert "log-probabilities of a prompt" in engine.channel.frames[-1].message
    many = asked(313, [picture(n, 64, 64) for n in range(17)])
    engine.core.submit(many)
    assert "at most 16" in engine.channel.frames[-1].message


def test_an_aborted_request_leaves_nothing(engine: Engine) -> None:
    engine.core.submit(asked(320, [1, picture(77, *SIZES[1]), 2]))
    engine.core.abort(320)
    assert engine.run(asked(321, [1, 2]))[321]
    assert not engine.queue.is_waiting


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ({"speculative": "mtp"}, "--speculative mtp"),
        ({"kv_transfer_address": "10.0.0.1:7", "role": "prefill"}, "--role prefill"),
        ({"backend": "null"}, "--backend cpu"),
    ],
)
def test_what_images_do_not_go_with_is_refused(
    toy: tuple[Path, torch.nn.Module], tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        load_executor(
            EngineConfig(model_dir=toy[0], cache_dir=tmp_path, images=True, **fields), lambda *_: None
        )
