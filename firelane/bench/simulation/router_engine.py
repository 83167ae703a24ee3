"""A simulated engine: chunked prefill in the order of arrival, beside decode, with an LRU cache of pages."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import TenantLoad, WorkLeft
from firelane.wire.page_names import page_names

PAGE_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class EngineSpeed:
    """A step takes step_s, and what its prompt tokens and its sequences cost. chunk_tokens: of prompts, at
    most, in a step. kv_tokens: that the cache holds."""

    prefill_tokens_per_s: float = 16_000.0
    step_s: float = 0.008
    sequence_s: float = 0.00005
    chunk_tokens: int = 2048
    kv_tokens: int = 400_000
    max_num_seqs: int = 128


@dataclass(slots=True)
class Job:
    """A request at an engine. names: of its prompt's pages. left: prompt tokens to compute, once it has
    begun; cached: prompt tokens that it found in the cache."""

    flight: InFlight
    output: bytes
    names: list[int]
    on_end: Callable[[Job], None]
    left: int = -1
    cached: int = 0
    first_s: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        return self.flight.prompt_tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + len(self.output) // 4


class PageCache:
    """Names of pages, the least recently used first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pages: OrderedDict[int, None] = OrderedDict()

    def use(self, names: Sequence[int]) -> int:
        """Number of the leading pages that are there."""
        found = 0
        while found < len(names) and names[found] in self._pages:
            found += 1
        self.put(names[:found])
        return found

    def put(self, names: Sequence[int]) -> None:
        """A prompt's end goes before its beginning."""
        for name in reversed(names):
            self._pages[name] = None
            self._pages.move_to_end(name)
        while len(self._pages) > self._capacity:
            self._pages.popitem(last=False)


class TraceEngine:
    """A RoutedEngine whose requests are computed in simulated steps."""

    def __init__(self, name: str, speed: EngineSpeed) -> None:
        self.name = name
        self.speed = speed
        self.life = int(name) + 1
        self.role, self.engine_id, self.pages_address = "both", "", ""
        self.kv_tokens = speed.kv_tokens
        self.prefill_tokens = self._waiting_tokens = 0
        self._work = WorkLeft()
        self.queued: TenantLoad | None = None
        """It takes who came first."""
        self.step_ms, self.token_ms = 1000 * speed.step_s, 1000 / speed.prefill_tokens_per_s
        self.is_busy = False
        self._cache = PageCache(speed.kv_tokens // PAGE_TOKENS)
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[int, int, Job]] = []
        self._drawn: list[Job] = []
        self._steps = 0
        self._running_tokens = 0

    @property
    def sequences(self) -> int:
        return len(self._waiting) + len(self._prefilling) + len(self._decoding)

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        tokens = _expected(job)
        self._work.added(tokens)
        self._waiting_tokens += tokens
        self.prefill_tokens += tokens

    def _count(self, now_s: float) -> None:
        """Count the load, as EngineLink does with each frame."""
        self.prefill_tokens = self._work.left(self._waiting_tokens, now_s, self.token_ms)

    def begin(self, now_s: float) -> float:
        """The end of the step that begins now."""
        self._count(now_s)
        self._admit()
        speed, decoding = self.speed, len(self._decoding)
        computed, self._drawn = self._prefill(speed.chunk_tokens)
        return now_s + speed.step_s + computed / speed.prefill_tokens_per_s + decoding * speed.sequence_s

    def finish(self, now_s: float) -> list[Job]:
        """The jobs that end with the step that ends now."""
        self._steps += 1
        ended = [*self._decoded(), *self._begin_decode(self._drawn, now_s)]
        self._drawn = []
        for job in ended:
            self._end(job)
        self._count(now_s)
        return ended

    def _admit(self) -> None:
        """Admit as many requests as the cache has room for, one at least."""
        running = len(self._prefilling) + len(self._decoding)
        while self._waiting and running < self.speed.max_num_seqs:
            tokens = self._waiting[0].tokens
            if running and self._running_tokens + tokens > self.kv_tokens:
                return
            self._running_tokens += tokens
            self._prefilling.append(self._waiting.popleft())
            running += 1

    def _prefill(self, budget: int) -> tuple[int, list[Job]]:
        """Tokens computed, and the jobs whose prompt is complete with them."""
        left, drawn = budget, list[Job]()
        while left and self._prefilling:
            job = self._prefilling[0]
            if job.left < 0:
                job.cached = min(self._cache.use(job.names) * PAGE_TOKENS, job.prompt_tokens - 1)
                job.left = job.prompt_tokens - job.cached
            part = min(left, job.left)
            left, job.left = left - part, job.left - part
            if job.left == 0:
                self._cache.put(job.names)
                drawn.append(self._prefilling.popleft())
        return budget - left, drawn

    def _decoded(self) -> Iterable[Job]:
        while self._decoding and self._decoding[0][0] <= self._steps:
            yield heapq.heappop(self._decoding)[2]

    def _begin_decode(self, drawn: list[Job], now_s: float) -> Iterable[Job]:
        for job in drawn:
            job.first_s = now_s
            self._waiting_tokens -= _expected(job)
            output_tokens = len(job.output) // 4
            if output_tokens <= 1:
                yield job
            else:
                entry = self._steps + output_tokens - 1, job.flight.id, job
                heapq.heappush(self._decoding, entry)

    def _end(self, job: Job) -> None:
        self._running_tokens -= job.tokens
        request = job.flight.request
        self._cache.put(page_names(request.salt, request.prompt + job.output, PAGE_TOKENS))


def _expected(job: Job) -> int:
    """Prompt tokens that the router takes it to cost."""
    return job.prompt_tokens - job.flight.cached_tokens
