"""The sampling kernel on its own, compiled for one target, and the judge of what it draws."""

from __future__ import annotations

import ctypes as ct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from firelane import env
from firelane.contract import MAX_LOGPROBS, SAMPLE, SAMPLING_DTYPE
from firelane.native.machine import compile_flags, cpu_identity
from firelane.native.toolchain import find_compiler
from firelane.program import sampling_reference as reference

CSRC = Path(__file__).parents[2] / "firelane" / "backends" / "cpu" / "csrc"
VOCABS = (7, 77, 1000, 4096)  # less than a vector, a tail, several blocks and a tail, whole blocks
FIELDS = SAMPLING_DTYPE.names or ()

SOURCE = """
%(contract)s
#include "sampling/sample_row.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace firelane;
#define SAMPLER(V) \\
  EXPORT long long scratch_bytes_##V() { return (long long)kSampleScratchBytes<V>; } \\
  EXPORT void sample_##V(void* scratch, const float* logits, const SamplingParams* p, const int* tokens, \\
      const int* bias_ids, const float* bias_values, const int* stop_ids, const unsigned* mask, \\
      int position, int kind, int* token, float* logprob, int* top_ids, float* top_logprobs) { \\
    static_cast<Sampler<V>*>(scratch)->run( \\
        logits, {*p, tokens, bias_ids, bias_values, stop_ids, mask}, position, kind, \\
        {token, logprob, top_ids, top_logprobs}); }
%(samplers)s
EXPORT void exponential(const float* x, float* y, int n) {
  for (int i = 0; i < n; i += 16) {
    Block block = load_block<16>(x + i, 0);
    for (Lanes& v : block.v) v = exp_unfused(v);
    std::memcpy(y + i, &block, 64);
  }
}
EXPORT void philox(const unsigned* c, const unsigned* k, unsigned* out) {
  const auto words = philox4x32({c[0], c[1], c[2], c[3]}, {k[0], k[1]});
  for (int i = 0; i < 4; ++i) out[i] = words[i];
}
EXPORT float uniform(unsigned long long seed, int position) { return uniform_at(seed, position); }
EXPORT void layout(int* out) {
  int* o = out;
  %(offsets)s
  *o++ = sizeof(SamplingParams);
  *o++ = kMaxLogprobs; *o++ = kMaxBias; *o++ = kMaxStopIds; *o++ = kSample; *o++ = kScore;
}
"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A row's request: fields of SAMPLING_DTYPE, the slot's lists, position, kind."""

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_k: int = 0
    logprobs: int = -1
    seed: int = 0
    prompt_len: int = 1
    stop_from: int = 0
    tokens: tuple[int, ...] = (0,)
    bias_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    stop_ids: tuple[int, ...] = ()
    mask: bytes = b""  # words of 32 bits; none: the row is not masked
    second_text: int = 0
    num_reported: int = 0
    position: int = 0
    kind: int = SAMPLE

    @property
    def num_stop_ids(self) -> int:
        return len(self.stop_ids)

    @property
    def num_bias(self) -> int:
        return len(self.bias_ids)

    @property
    def masked(self) -> int:
        return int(bool(self.mask))

    @property
    def params(self) -> np.ndarray:
        """SAMPLING_DTYPE [1]."""
        return np.array([tuple(getattr(self, name) for name in FIELDS)], SAMPLING_DTYPE)

    @property
    def reference(self) -> reference.RowSampling:
        return reference.RowSampling(
            position=self.position + 1,
            draws=self.kind == SAMPLE,
            tokens=np.asarray(self.tokens, np.int32),
            params=self.params[0],
            bias_ids=np.asarray(self.bias_ids, np.int32),
            bias_values=np.asarray(self.bias_values, np.float32),
            stop_ids=np.asarray(self.stop_ids, np.int32),
            mask=np.frombuffer(self.mask, np.uint32),
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    token: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]
    bits: bytes = field(repr=False)


class Kernel:
    """The sampling kernel compiled for one target. Each call starts from scratch memory full of garbage."""

    def __init__(self, isa: str, cache_dir: Path) -> None:
        # Now: the CPU backend needs the base install, and tests of kernels on a GPU have only NumPy.
        from firelane.backends.cpu.codegen.contract_source import contract_source

        cpu = cpu_identity()
        source = SOURCE % {
            "contract": contract_source(),
            "samplers": "\n".join(f"SAMPLER({v})" for v in VOCABS),
            "offsets": " ".join(f"*o++ = offsetof(SamplingParams, {name});" for name in FIELDS),
        }
        path = find_compiler(env.read()).build(
            source,
            include_dirs=[CSRC],
            flags=compile_flags(isa, cpu),
            cache_dir=cache_dir,
            cpu_key=cpu.key,
            name="the sampling test",
        )
        self.isa = isa
        self.lib = ct.CDLL(str(path))
        self.lib.uniform.restype = ct.c_float
        self.lib.uniform.argtypes = [ct.c_uint64, ct.c_int]

    def row(self, logits: np.ndarray, request: Request) -> Row:
        vocab = len(logits)
        logits = np.ascontiguousarray(logits, np.float32)
        before = logits.tobytes()
        token, logprob = np.full(1, -7, np.int32), np.full(1, np.nan, np.float32)
        top_ids, top_logprobs = np.full(MAX_LOGPROBS, -7, np.int32), np.full(MAX_LOGPROBS, 7, np.float32)
        asked, params, scratch = request.reference, request.params, self._scratch(vocab)
        getattr(self.lib, f"sample_{vocab}")(
            address(scratch),
            address(logits),
            address(params),
            *map(address, (asked.tokens, asked.bias_ids, asked.bias_values, asked.stop_ids, asked.mask)),
            ct.c_int(request.position),
            ct.c_int(request.kind),
            *map(address, (token, logprob, top_ids, top_logprobs)),
        )
        assert logits.tobytes() == before
        return Row(
            token=int(token[0]),
            logprob=float(logprob[0]),
            top_ids=top_ids.tolist(),
            top_logprobs=top_logprobs.tolist(),
            bits=b"".join(a.tobytes() for a in (token, logprob, top_ids, top_logprobs)),
        )

    def _scratch(self, vocab: int) -> np.ndarray:
        size = getattr(self.lib, f"scratch_bytes_{vocab}")
        size.restype = ct.c_longlong
        return np.full(size() // 8 + 1, -1, np.int64)


def address(array: np.ndarray) -> ct.c_void_p:
    return ct.c_void_p(array.ctypes.data)


def mask_of(allowed: Iterable[int], vocab: int, beyond: int = 0) -> bytes:
    """A mask that allows these tokens; `beyond`: the bits of its last word that are past the vocabulary."""
    words = np.zeros(vocab // 32 + 1, np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1 << token % 32)
    words[-1] |= np.uint32(beyond << vocab % 32 & 0xFFFFFFFF)
    return words.tobytes()


def distribution(logits: np.ndarray, request: Request) -> np.ndarray:
    """Probabilities after all filters, float64 [vocab]. The temperature is not 0."""
    scaled = reference.adjust(logits, request.reference) / np.float32(request.temperature)
    mass = np.exp(scaled.astype(np.float64) - float(scaled.max()))
    mass[~reference.kept(scaled, mass, request.params[0])] = 0.0
    return mass / mass.sum()


def is_right_draw(token: int, logits: np.ndarray, request: Request, *, slack: float = 2e-6) -> bool:
    """Whether the reference draws `token`, up to float32 rounding where an interval or a filter ends."""
    x = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    if request.temperature == 0 or reference.adjust(x, request.reference).max() == -np.inf:
        return token == reference.draw(x, replace(request, temperature=0.0).reference)
    u = reference.uniform(request.seed, request.position + 1)
    moved = [
        replace(request, top_p=request.top_p + s, min_p=min(1.0, request.min_p + s))
        if request.min_p
        else replace(request, top_p=request.top_p + s)
        for s in (0.0, -slack, slack)
    ]
    return any(_covers(distribution(x, r), token, u) for r in moved)


def _covers(p: np.ndarray, token: int, u: float, tolerance: float = 1e-5) -> bool:
    upper = p.cumsum()[token]
    return bool(p[token] > 0 and upper - p[token] - tolerance <= u <= upper + tolerance)
