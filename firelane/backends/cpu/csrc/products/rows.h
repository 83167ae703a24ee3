// Kernels that work row by row: Embed, RMSNorm, Cast, SelectRows. Widths are multiples of 16 in memory (rows are padded).
#pragma once

#include <cmath>

#include "context.h"
#include "panels/coded.h"

namespace firelane {

FL_INLINE float widen(const Bf16*, const Bf16::word* lane, int k) {
  return bf16_to_f32(std::uint16_t(lane[(k >> 1) * 32] >> (16 * (k & 1))));
}
FL_INLINE float widen(const F32*, const F32::word* lane, int k) { return lane[k * 32]; }

// The rows of a table that are there: those of `rows` tokens from `first` on, of a vocabulary of `of`.
struct TablePart {
  int first, rows, of;

  // The token's row in the table, -1 where it has none.
  FL_INLINE int row(const Context& c, int token) const {
    int id = c.slot_tokens(c.token_slot[token])[c.token_position[token]];
    if (id < 0 || id >= of) id = 0;
    return unsigned(id - first) < unsigned(rows) ? id - first : -1;
  }
};

// A row of the table is one lane of a panel: the same packed weight serves the logits of a tied model.
template <class T, int K, int LDO>
FL_KERNEL void embed(const Context& c, int thread, TablePart part, const typename T::word* table, float scale,
                     float* out) {
  const Range mine = split(c.step.num_tokens, thread, c.threads());
  for (int row = mine.begin; row < mine.end; ++row) {
    const int id = part.row(c, row);
    if (id < 0) {
      std::memset(out + std::size_t(row) * LDO, 0, K * sizeof(float));
      continue;
    }
    const typename T::word* lane = table + std::size_t(id / 32) * (K / T::kPerWord) * 32 + id % 32;
    for (int k = 0; k < K; ++k) out[std::size_t(row) * LDO + k] = widen(static_cast<const T*>(nullptr), lane, k) * scale;
  }
}

// The same from a coded form: the panel is decoded into scratch first.
template <class Coded, int K, int LDO>
FL_KERNEL void embed_coded(const Context& c, int thread, TablePart part, const CodedWeight& table, float scale,
                           float* out) {
  const Range mine = split(c.step.num_tokens, thread, c.threads());
  auto* words = reinterpret_cast<std::uint32_t*>(c.thread_scratch(thread));
  for (int row = mine.begin; row < mine.end; ++row) {
    const int id = part.row(c, row);
    if (id < 0) {
      std::memset(out + std::size_t(row) * LDO, 0, K * sizeof(float));
      continue;
    }
    decode_panel<Coded, K>(table.bytes + table.offsets[id / 32], words);
    for (int k = 0; k < K; ++k)
      out[std::size_t(row) * LDO + k] = widen(static_cast<const Bf16*>(nullptr), words + id % 32, k) * scale;
  }
}

// WIDTH need not be a multiple of 16: lanes past it are masked out of the sum.
template <int WIDTH>
FL_INLINE float mean_square(const float* x) {
  f32x16 s[2] = {};
  int i = 0;
  for (; i + 32 <= WIDTH; i += 32) {
    const f32x16 a = load(x + i), b = load(x + i + 16);
    s[0] = fmadd(a, a, s[0]);
    s[1] = fmadd(b, b, s[1]);
  }
  for (; i < WIDTH; i += 16) {
    f32x16 a = load(x + i);
    if (i + 16 > WIDTH) a = select(less(lane_index(), splat_i(WIDTH - i)), a, f32x16{});
    s[0] = fmadd(a, a, s[0]);
  }
  return sum(s[0] + s[1]) / float(WIDTH);
}

// GROUPS: parts of a row with a mean each; LDR: of the residual; WEIGHTED, RESIDUAL, SCALED: which of the last three operands there are.
template <class T, int WIDTH, int GROUPS, int LDX, int LDR, int LDO, bool WEIGHTED, bool RESIDUAL, bool SCALED>
struct RmsNorm {
  const float *x, *weight;
  float eps;
  const float *residual, *scalar;
  typename T::act* out;

  FL_KERNEL void run(const Context& c, int thread, int rows) const {
    constexpr int size = WIDTH / GROUPS;
    static_assert(GROUPS == 1 || size % 16 == 0);
    const Range mine = split(rows, thread, c.threads());
    for (int row = mine.begin; row < mine.end; ++row)
      for (int first = 0; first < WIDTH; first += size) {
        const float* in = x + std::size_t(row) * LDX + first;
        const float scale = 1.0f / std::sqrt(mean_square<size>(in) + eps);
        for (int i = 0; i < size; i += 16) {
          f32x16 y = load(in + i) * scale;
          if constexpr (WEIGHTED) y = y * load(weight + first + i);
          if constexpr (RESIDUAL) y = y + load(residual + std::size_t(row) * LDR + first + i);
          if constexpr (SCALED) y = y * scalar[0];
          T::store_act(out + std::size_t(row) * LDO + first + i, y);
        }
      }
  }
};

template <class T, int WIDTH, int LDX, int LDO>
FL_KERNEL void cast(const Context& c, int thread, int rows, const float* x, typename T::act* out) {
  const Range mine = split(rows, thread, c.threads());
  for (int row = mine.begin; row < mine.end; ++row)
    for (int i = 0; i < WIDTH; i += 16)
      T::store_act(out + std::size_t(row) * LDO + i, load(x + std::size_t(row) * LDX + i));
}

template <int WIDTH, int LDX, int LDO>
FL_KERNEL void select_rows(const Context& c, int thread, const float* x, float* out) {
  const Range mine = split(c.step.num_rows, thread, c.threads());
  for (int row = mine.begin; row < mine.end; ++row)
    std::memcpy(out + std::size_t(row) * LDO, x + std::size_t(c.step.row_token[row]) * LDX, WIDTH * sizeof(float));
}

}  // namespace firelane
