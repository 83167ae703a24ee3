"""Metrics of a gateway and of each model: latencies, tokens, ends. Names are vLLM's where the meaning is the
same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.http.exchange import Request
from firelane.telemetry.metrics import Histogram, Registry
from firelane.wire.frames import EngineStats, StepFrame

TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E_BOUNDS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_BOUNDS = (1.0, *(float(2**e) for e in range(3, 15)))
TOKEN_BOUNDS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))


class ServerMetrics:
    """Metrics of the gateway itself, whatever the model."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.responses = registry.counter("firelane:http_responses", "Answers by HTTP status.", "status")

        self._requests = registry.table(
            "http_requests", "Requests by route, method and kind of status.", "handler", "method", "status"
        )

    def answered(self, request: Request, status: int) -> None:
        """An answer's head is out. Paths that do not exist are one."""
        pattern = request.route.pattern if request.route is not None else "none"
        self._requests.add(pattern, request.method.decode("ascii", "replace"), f"{status // 100}xx")

    def responded(self, status: int) -> None:
        self.responses.add(1, str(status))


class ModelMetrics:
    """Metrics of one model, each with the label `model_name`.

    `gaps` gathers, within a frame, how many sequences had their last token at which time: all tokens of a
    frame come at one moment, so a frame costs a few observations, not one a token; several tokens of one
    sequence in a frame are one. Background work leaves its own in `unseen_gaps`: latencies are those of
    clients.
    """

    def __init__(self, registry: Registry, engines: ReplicaSet, server: ServerMetrics) -> None:
        """registry: its instruments carry the model's label."""
        self.responded = server.responded
        self.gaps: defaultdict[float, int] = defaultdict(int)
        self.unseen_gaps: defaultdict[float, int] = defaultdict(int)
        self.ttft = registry.histogram(
            "vllm:time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            TTFT_BOUNDS_S,
        )
        self.itl = registry.histogram(
            "vllm:inter_token_latency_seconds",
            "Between two steps that gave one sequence tokens.",
            ITL_BOUNDS_S,
        )
        self._e2e = registry.histogram(
            "vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", E2E_BOUNDS_S
        )
        self._sizes = _Sizes(registry)
        self._phases = _Phases(registry)
        self.prompt_tokens = registry.counter("vllm:prompt_tokens", "Prompt tokens of started sequences.")
        self._cached = registry.counter(
            "vllm:prompt_tokens_cached", "Prompt tokens of started sequences, from the prefix cache."
        )
        self.generated = registry.counter("vllm:generation_tokens", "Tokens that the engine generated.")
        self._accepted = registry.counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Tokens of answers that had been drafted, by their place in the draft.",
            "position",
        )
        self._deadlines = registry.counter(
            "firelane:deadline_requests",
            "Requests with a deadline: in time, late, or refused because it could not be kept.",
            "outcome",
        )
        self.ends = registry.counter("vllm:request_success", "Ended sequences.", "finished_reason")
        _engine_gauges(registry, engines)
        _engine_counters(registry, engines)
        _tiers(registry, engines)
        _cache_facts(registry, engines)

    def started(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens.add(prompt_tokens)
        self._cached.add(cached_tokens)
        self._sizes.prompt.observe(prompt_tokens)

    @property
    def tokens(self) -> tuple[float, float]:
        """Tokens of prompts, and of output, so far, in all processes of the server."""
        return self.prompt_tokens.total, self.generated.total

    def submitted(self, max_tokens: int) -> None:
        self._sizes.limit.observe(max_tokens)

    def first_token(self, after_s: float) -> None:
        self.ttft.observe(after_s)

    def ended(self, reason: str, after_s: float | None, generated_tokens: int) -> None:
        """after_s: None for background work, which nobody waits for."""
        self.ends.add(1, reason)
        if after_s is not None:
            self._e2e.observe(after_s)
        self._sizes.output.observe(generated_tokens)

    def deadline(self, outcome: str) -> None:
        """A request with a deadline has ended: met, late or refused."""
        self._deadlines.add(1, outcome)

    def request_ended(self, longest: int) -> None:
        """longest: tokens of the longest of its sequences."""
        self._sizes.longest.observe(longest)

    def phases(self, *, queue_s: float, prefill_s: float, decode_s: float, generated_tokens: int) -> None:
        """Durations of the phases of a sequence that ended by itself."""
        self._phases.observe(max(0.0, queue_s), max(0.0, prefill_s), decode_s, generated_tokens)

    def on_frame(self, frame: StepFrame, now_s: float, prompt_tokens: int = 0) -> None:
        """Settle what the frame's tokens left in `gaps`. prompt_tokens: of the prompts that ended in it."""
        generated = len(frame.tokens)
        self.generated.add(generated)
        if generated + prompt_tokens:
            self._sizes.step.observe(generated + prompt_tokens)
        if frame.counts:
            self._note_drafts(frame.counts)
            self.gaps.pop(now_s, None)  # of tokens that came together
        for last_s, times in self.gaps.items():
            self.itl.observe(now_s - last_s, times)
        self.gaps.clear()
        self.unseen_gaps.clear()

    def _note_drafts(self, counts: list[int]) -> None:
        """counts: of tokens that sequences got from one step; all but the first of each had been drafted."""
        for position in range(max(counts) - 1):
            self._accepted.add(sum(count > position + 1 for count in counts), str(position))


class _Sizes:
    """Tokens of requests, sequences and steps."""

    def __init__(self, registry: Registry) -> None:
        def tokens(name: str, text: str, bounds: tuple[float, ...] = TOKEN_BOUNDS) -> Histogram:
            return registry.histogram(f"vllm:{name}", text, bounds)

        self.prompt = tokens("request_prompt_tokens", "Prompt tokens of a request.")
        self.output = tokens("request_generation_tokens", "Generated tokens of a sequence.")
        self.limit = tokens("request_params_max_tokens", "Tokens that a sequence may generate.")
        self.longest = tokens(
            "request_max_num_generation_tokens", "Generated tokens of the longest sequence of a request."
        )
        self.step = tokens(
            "iteration_tokens_total",
            "Tokens of a step: generated ones, and those of prompts that it ended.",
            STEP_BOUNDS,
        )


class _Phases:
    """From submission to the plan of the first step, to the first token, to the last one."""

    def __init__(self, registry: Registry) -> None:
        def seconds(name: str, text: str) -> Histogram:
            return registry.histogram(f"vllm:request_{name}_time_seconds", text, E2E_BOUNDS_S)

        self._queue = seconds("queue", "In the queue, before the first step.")
        self._prefill = seconds("prefill", "From the plan of the first step to the first token.")
        self._decode = seconds("decode", "From the first token to the last one.")
        self._inference = seconds("inference", "From the plan of the first step to the last token.")
        self._per_token = registry.histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time between the tokens of a sequence.",
            ITL_BOUNDS_S,
        )

    def observe(self, queue_s: float, prefill_s: float, decode_s: float, generated_tokens: int) -> None:
        self._queue.observe(queue_s)
        self._prefill.observe(prefill_s)
        self._decode.observe(decode_s)
        self._inference.observe(prefill_s + decode_s)
        if generated_tokens > 1:
            self._per_token.observe(decode_s / (generated_tokens - 1))


def _engine_gauges(registry: Registry, engines: ReplicaSet) -> None:
    def gauges(name: str, text: str, level: Callable[[EngineStats], float]) -> None:
        def read() -> dict[str, float]:
            return {replica: level(stats) for replica, stats in engines.figures.stats_by_replica.items()}

        registry.gauges(name, text, "replica", read)

    def kv_usage(stats: EngineStats) -> float:
        return stats.kv_used_blocks / stats.kv_total_blocks if stats.kv_total_blocks else 0.0

    def snapshot_usage(stats: EngineStats) -> float:
        return stats.state_snapshots / stats.state_snapshots_total if stats.state_snapshots_total else 0.0

    gauges("vllm:num_requests_running", "Sequences in the batch.", lambda stats: stats.running)
    gauges("vllm:num_requests_waiting", "Sequences in the queue.", lambda stats: stats.waiting)
    gauges("vllm:kv_cache_usage_perc", "Used part of the KV blocks, 1 = all.", kv_usage)
    gauges(
        "firelane:state_snapshot_usage_perc",
        "Part of the state snapshots that hold one, 1 = all.",
        snapshot_usage,
    )
    registry.gauge("firelane:sequences_in_flight", "Submitted and not ended.", lambda: engines.in_flight)
    registry.gauge(
        "firelane:engine_up",
        "1 when an engine serves.",
        lambda: float(engines.ready is not None),
        common=True,
    )
    registry.gauge("firelane:replicas_up", "Engines that serve.", lambda: len(engines.serving), common=True)
    registry.gauge(
        "firelane:sequences_parked",
        "Sequences that wait for an engine.",
        lambda: len(engines.dispatcher.parked),
    )
    registry.gauge(
        "firelane:engine_deaths",
        "Engines that ended.",
        lambda: engines.figures.deaths,
        monotonic=True,
        common=True,
    )
    registry.gauge(
        "firelane:engine_ejections",
        "Engines kept from new requests for a while.",
        lambda: engines.dispatcher.ejection.ejected,
        monotonic=True,
    )
    registry.gauge(
        "firelane:sequences_resumed",
        "Sequences that lost their engine.",
        lambda: engines.figures.resumed,
        monotonic=True,
    )


CACHE_FACTS = (
    *("replica", "block_size", "num_gpu_blocks", "cache_bytes", "cache_dtype"),
    *("max_model_len", "max_num_seqs"),
)


def _cache_facts(registry: Registry, engines: ReplicaSet) -> None:
    """num_gpu_blocks: as vLLM calls them, wherever they lie."""

    def read() -> Iterator[tuple[tuple[str, ...], float]]:
        for link in engines.links:
            if link.ready is not None:
                ready = link.ready
                values = (ready.block_size, ready.num_blocks, ready.kv_bytes, ready.kv_cache_dtype)
                sizes = (ready.max_model_len, ready.max_num_seqs)
                yield (link.name, *map(str, (*values, *sizes))), 1.0

    registry.levels("vllm:cache_config_info", "The KV cache of each engine, in labels.", CACHE_FACTS, read)


TIERS = (("host", "in host memory"), ("disk", "on a drive"))
TIER_COUNTERS = {
    "hits": "Pages of prompts that came from the tier {}.",
    "evicted": "Pages in the tier {} that made room for others.",
    "damaged": "Pages in the tier {} that were not what was stored, and were computed.",
    "read_bytes": "Bytes read from the tier {}.",
    "written_bytes": "Bytes written to the tier {}.",
}


def _tiers(registry: Registry, engines: ReplicaSet) -> None:
    def read(field: str) -> Callable[[], float]:
        return lambda: getattr(engines.figures.stats, field)

    for tier, place in TIERS:
        registry.gauge(f"firelane:kv_{tier}_pages", f"Pages in the tier {place}.", read(f"{tier}_pages"))
        for what, text in TIER_COUNTERS.items():
            name, of = f"firelane:kv_{tier}_{what}", read(f"{tier}_{what}")
            registry.gauge(name, text.format(place), of, monotonic=True, common=True)


def _engine_counters(registry: Registry, engines: ReplicaSet) -> None:
    """Counters that live in the engines, kept growing over their restarts."""

    def counter(name: str, text: str, field: str) -> None:
        registry.gauge(name, text, lambda: getattr(engines.figures.stats, field), monotonic=True, common=True)

    counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", "prefix_queries")
    counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache.", "prefix_hits")
    counter(
        "firelane:state_snapshot_hits",
        "Sequences that began with a snapshot of recurrent state.",
        "state_snapshot_hits",
    )
    registry.gauge(
        "firelane:handed_over",
        "Requests that went from an engine for prefill to one for decode.",
        lambda: engines.figures.handed_over,
        monotonic=True,
    )
    for outcome in ("ok", "stale", "lost", "late"):
        text = f"Pulls of pages from other engines that were {outcome}."
        counter(f"firelane:kv_pulls_{outcome}", text, f"pulls_{outcome}")
    counter("firelane:kv_pulled_bytes", "Bytes of pages that came from other engines.", "pulled_bytes")
    counter("firelane:kv_pull_seconds", "Time of all pulls of pages together.", "pull_seconds")
    counter("vllm:spec_decode_num_drafts", "Drafts that steps have verified.", "spec_drafts")
    counter("vllm:spec_decode_num_draft_tokens", "Tokens of these drafts.", "spec_draft_tokens")
    counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were right.", "spec_accepted_tokens")
    counter("vllm:num_preemptions", "Sequences put back for want of KV blocks.", "preemptions")
    counter(
        "firelane:grammar_failures",
        "Answers that ended because their grammar took too much.",
        "grammar_failures",
    )
    counter("firelane:engine_steps", "Steps that the engine has run.", "steps")
