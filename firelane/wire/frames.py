"""Frames between a gateway and an engine. Encoded as msgpack arrays, one length-prefixed frame per message.

Gateway to engine: Submit (new requests), Abort, Drain, Sleep, Wake, ForgetTenant, TellPages, LoadAdapter and
UnloadAdapter. Engine to gateway: Loading and Progress while it loads, Ready once, then one StepFrame per
step, and Rejected for requests that it cannot take; CacheEvents and PageChanges where somebody wants them;
Asleep, Awake, Forgotten and AdaptersServed; all the time a Beat each second. One StepFrame carries the new
tokens of all sequences of a step: a per-step cost, not a per-token one. docs/wire.md describes resumption,
versions and the heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from firelane.wire.adapters import AdaptersServed, LoadAdapter, UnloadAdapter
from firelane.wire.cache_events import CacheEvents, PageChanges
from firelane.wire.images import Image, ImageFormat
from firelane.wire.sampling import Grammar, Sampling

FinishReason = Literal["stop", "length", "abort", "error"]
Pooling = Literal["last", "mean"]
PROTOCOL_VERSION = 15
"""The version of these frames. Ready carries it, and no gateway serves with an engine of another one."""


class NewRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One sequence to generate. `prompt` holds the token ids as little-endian int32; `salt` starts the hash
    chain of its KV blocks: only requests of equal salt share a prefix. `id` is unique on its connection.

    Sequences of one `tenant` share what is due to it: `weight` over the sum of the weights of all tenants
    that want something now. `background` ones get only what no other sequence wants. pooling: instead of
    generating, answer with one Embedding of the prompt (sampling then counts for nothing). output_start: for
    a request that another engine began, the index in `prompt` of the first token that is output already (-1:
    none is); the tokens that follow are the very ones that the first engine would have drawn. repeats:
    prompt, grammar and prediction, which are left out, are those of the request before it in the frame.
    client: who of the tenant asks, as address and connection; given with a grammar, which is compiled in
    turns. pages_at: the engine (Ready.engine_id) from which pages of the prompt may be had by their names.
    prefetch: the request comes later, with the same id: until then have its pages as they are computed there,
    and answer nothing.
    pages_address: where that engine gives pages to those of other servers, as host:port. tells_pages: its end
    says where pages of the prompt may be had by others. chunk_tokens: of its prompt that
    one step computes at most while the engine has other requests; 0: as many as there is room for.
    most_drafted: tokens that are drafted at a time at most; -1: as many as pay, 0: none. prediction: tokens
    of the answer as its client expects it, packed as the prompt; only drafts are taken from it.
    priority: lower is served sooner, within a tenant. deadline_ms: milliseconds that are left when this is
    sent until the answer has to be complete, or rather its first due_tokens tokens; 0: it has no deadline.
    adapter: the digest of the adapter that it is computed with, or its name; "" for none. second_text: of a
    pair of texts, the index in `prompt` that the second begins at; 0: it is one text. images: in the order of
    the prompt, whose ids are image_words() where their rows are to stand.
    """

    id: int
    prompt: bytes
    sampling: Sampling
    salt: bytes = b""
    grammar: Grammar | None = None
    tenant: str = ""
    weight: float = 1.0
    background: bool = False
    pooling: Pooling | None = None
    output_start: int = -1
    repeats: bool = False
    client: tuple[str, str] = ("", "")
    pages_at: str = ""
    prefetch: bool = False
    pages_address: str = ""
    tells_pages: bool = False
    chunk_tokens: int = 0
    most_drafted: int = -1
    prediction: bytes = b""
    priority: int = 0
    deadline_ms: int = 0
    due_tokens: int = 1
    adapter: str = ""
    second_text: int = 0
    images: list[Image] = []


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    requests: list[NewRequest]


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Stop these requests. Unknown or finished ids are ignored: the client may have lost a race."""

    ids: list[int]


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Finish what runs for at most `timeout_s` seconds, fail the rest with reason "abort", then exit."""

    timeout_s: float


class Sleep(msgspec.Struct, frozen=True, array_like=True, tag="sleep"):
    """Go to standby when nothing runs any more: the process stays, and gives its memory back. Answered with
    Asleep. A Submit wakes the engine as a Wake does."""


class Wake(msgspec.Struct, frozen=True, array_like=True, tag="wake"):
    """Come back from standby. Answered with Awake, also by an engine that does not sleep."""


class ForgetTenant(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """Erase the pages of this tenant, in the KV cache and in all tiers. Answered with Forgotten. id: of the
    same numbers as those of requests."""

    tenant: str
    id: int = 0


class TellPages(msgspec.Struct, frozen=True, array_like=True, tag="tell_pages"):
    """This gateway wants to know of the engine's pages: all at once, then PageChanges with each step."""


class Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forgotten"):
    """Pages of this tenant that were erased, counted in each place where they were. id: of ForgetTenant, to
    whose gateway alone this goes."""

    tenant: str
    pages: int
    id: int = 0


class Asleep(msgspec.Struct, frozen=True, array_like=True, tag="asleep"):
    """The engine is in standby. released_bytes: of KV cache, states, buffers and private copies of weights
    that it gave back; resident_bytes: private memory that its processes still hold."""

    released_bytes: int
    resident_bytes: int
    took_s: float


class Awake(msgspec.Struct, frozen=True, array_like=True, tag="awake"):
    """The engine serves again."""

    took_s: float


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Load progress: `stage` is "pack", "compile", "load" …; done and total are in `unit`s."""

    stage: str
    done: float
    total: float
    unit: str = ""


class Loading(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="loading"):
    """A model that the engine is about to load. dtype: of most of its weights; device: what it
    will run on, in words for people. draft: the model that drafts for it, where there is one."""

    architecture: str
    parameters: int
    dtype: str
    weights_bytes: int
    device: str
    draft: Loading | None = None


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """The process runs: sent by a thread of its own each second. age_s: since its loop last made progress (a
    turn of the loop, or a report while it loads); 0 while there is nothing to do. step_ms, token_ms: the time
    of its short steps, and of a token in a long one, as measured lately; 0: not yet. replaced: child
    processes that this engine has replaced so far, by kind; broken: why it can have none of a kind."""

    age_s: float
    step_ms: float = 0.0
    token_ms: float = 0.0
    replaced: dict[str, int] = {}
    broken: dict[str, str] = {}


class Ready(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="ready"):
    """The engine serves. The figures describe what it can take. identity: a hash of all that decides about
    the tokens of a request; engines of equal identity can go on with each other's requests. states_bytes: of
    all recurrent states, snapshots among them; num_snapshots: how many of these there are. quantization: how
    weights are quantised, "" where they are not. can_sleep: whether the engine knows standby.
    activation_dtype: of products with integer codes. role: as in EngineConfig. engine_id: by which others
    know this process where they have pages from it; "" where pages do not travel. kv_medium: CPU or GPU,
    whose memory the KV cache is in. scheduling_policy: as in EngineConfig. pages_address: where it gives
    pages to engines of other servers and hosts, as host:port; "" where it does not. can_generate: whether
    the model has a head; without one it serves embeddings alone. is_encoder: it sees texts whole, and pools
    in its own way alone. adapters: digests of what they are, by name. version: of the weights, as an update
    has named it; "" of those that the server began with. images: how it takes them; None: it takes none."""

    protocol: int
    pid: int
    model: str
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    weights_bytes: int
    kv_bytes: int
    load_s: float
    embedding_width: int = 0
    identity: str = ""
    states_bytes: int = 0
    num_snapshots: int = 0
    kv_cache_dtype: str = "auto"
    quantization: str = ""
    can_sleep: bool = False
    activation_dtype: str = "bf16"
    role: str = "both"
    engine_id: str = ""
    kv_medium: str = "CPU"
    scheduling_policy: str = "fair"
    pages_address: str = ""
    can_generate: bool = True
    is_encoder: bool = False
    adapters: dict[str, str] = {}
    version: str = ""
    images: ImageFormat | None = None


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The engine could not start, or not go on: the one-line error, the exit code that the command should end
    with, and the error's class in firelane.errors, "" where it has none."""

    message: str
    exit_code: int
    kind: str = ""


class Started(msgspec.Struct, frozen=True, array_like=True):
    """The request's prefill has begun, planned `age_s` seconds before this frame was made; `cached_tokens` of
    its prompt came from the prefix cache, of which host_tokens were read from the tier in host memory for
    it, disk_tokens from the one on a drive, and peer_tokens pulled from another engine."""

    id: int
    cached_tokens: int
    age_s: float = 0.0
    host_tokens: int = 0
    disk_tokens: int = 0
    peer_tokens: int = 0


class PagesAt(msgspec.Struct, frozen=True, array_like=True):
    """Pages of a prompt's full blocks. address: where the engine of this id gives them to those of other
    servers, as host:port. blocks: 64 bits of each block's name, as in CacheEvents."""

    engine_id: str
    address: str
    blocks: list[int]


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """The request has ended; a token in the same frame is its last one. Stop tokens are reported too: with
    "stop", a token in the same frame is one. Text that ends by its grammar gets this in the next frame.
    message: with "error", what the request itself has to do with it. pages: of a request with
    tells_pages, where the engine gives any. rejected_drafts: drafted tokens that were wrong."""

    id: int
    reason: FinishReason
    message: str = ""
    pages: PagesAt | None = None
    rejected_drafts: int = 0


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token under the model's raw distribution, and the best alternatives, best first.

    `position` is the token's index in prompt + output; below the prompt's length it answers prompt_logprobs.
    """

    id: int
    position: int
    token: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


class Embedding(msgspec.Struct, frozen=True, array_like=True):
    """The pooled hidden state of a request with `pooling`, after the model's last norm and not normalised:
    little-endian float32 [embedding_width]. Finished("stop") follows in the same frame."""

    id: int
    values: bytes


class EngineStats(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """State after a step; counters grow from the engine's start. running and waiting include background
    work. state_snapshots: snapshots of recurrent states that a prompt could begin with; state_snapshot_hits:
    sequences that began with one. pulls_ok, stale, lost, late: pulls of pages from other engines, by what
    became of them (docs/cluster.md); pulled_bytes: of pages that came; pull_seconds: of all pulls
    together. host_, disk_: of the tiers (docs/kv-tiers.md): pages now; of prompts that came from there
    (hits), that made room for others, that were found damaged; and bytes. spec_: drafts, their tokens, and
    those of them that were accepted."""

    running: int = 0
    waiting: int = 0
    kv_used_blocks: int = 0
    kv_total_blocks: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    running_background: int = 0
    waiting_background: int = 0
    grammar_failures: int = 0
    state_snapshots: int = 0
    state_snapshots_total: int = 0
    state_snapshot_hits: int = 0
    pulls_ok: int = 0
    pulls_stale: int = 0
    pulls_lost: int = 0
    pulls_late: int = 0
    pulled_bytes: int = 0
    pull_seconds: float = 0.0
    host_pages: int = 0
    host_hits: int = 0
    host_evicted: int = 0
    host_damaged: int = 0
    host_read_bytes: int = 0
    host_written_bytes: int = 0
    disk_pages: int = 0
    disk_hits: int = 0
    disk_evicted: int = 0
    disk_damaged: int = 0
    disk_read_bytes: int = 0
    disk_written_bytes: int = 0
    spec_drafts: int = 0
    spec_draft_tokens: int = 0
    spec_accepted_tokens: int = 0


class StepFrame(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """All that one step produced: `ids[i]` got the next counts[i] of `tokens` (one each where there are no
    counts)."""

    step: int
    ids: list[int]
    tokens: list[int]
    started: list[Started]
    finished: list[Finished]
    logprobs: list[TokenLogprobs]
    stats: EngineStats
    embeddings: list[Embedding] = []
    counts: list[int] = []

    def each_token(self) -> Iterator[tuple[int, int, bool]]:
        """Request id, token, and whether it is the request's last token in this frame."""
        if not self.counts:
            for request_id, token in zip(self.ids, self.tokens, strict=True):
                yield request_id, token, True
            return
        tokens = iter(self.tokens)
        for request_id, count in zip(self.ids, self.counts, strict=True):
            for left in reversed(range(count)):
                yield request_id, next(tokens), not left


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag="rejected"):
    """The engine cannot take this request; the sequence does not exist. elsewhere: another engine can.
    status: of HTTP, for the client: 400, the request is wrong; 429 and 503, it may be sent again later; 500,
    the engine is at fault. code: for programs; "" where the status says all."""

    id: int
    message: str
    elsewhere: bool = False
    status: int = 400
    code: str = ""


ToEngine = Submit | Abort | Drain | Sleep | Wake | ForgetTenant | TellPages | LoadAdapter | UnloadAdapter
FromEngine = (
    Beat
    | Loading
    | Progress
    | Ready
    | Failed
    | StepFrame
    | Rejected
    | Asleep
    | Awake
    | Forgotten
    | AdaptersServed
    | CacheEvents
    | PageChanges
)
