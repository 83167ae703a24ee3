// Kernels of encoders that work row by row: LayerNorm, AddEmbedding and Pool.
#pragma once

#include <cmath>

#include "context.h"

namespace firelane {

// Sums of f(x) over WIDTH numbers; lanes past it are masked out.
template <int WIDTH, class F>
FL_INLINE float sum_of(const float* x, const F& f) {
  f32x16 s[2] = {};
  int i = 0;
  for (; i + 32 <= WIDTH; i += 32) {
    s[0] += f(load(x + i));
    s[1] += f(load(x + i + 16));
  }
  for (; i < WIDTH; i += 16) {
    f32x16 a = f(load(x + i));
    if (i + 16 > WIDTH) a = select(less(lane_index(), splat_i(WIDTH - i)), a, f32x16{});
    s[0] += a;
  }
  return sum(s[0] + s[1]);
}

// T: of out; TR: of the rounded copy, ROUNDED says whether there is one.
template <class T, class TR, int WIDTH, int LDX, int LDO, int LDR, bool BIASED, bool ROUNDED>
struct LayerNorm {
  const float *x, *weight, *bias;
  float eps;
  typename T::act* out;
  typename TR::act* rounded;

  FL_KERNEL void run(const Context& c, int thread, int rows) const {
    const Range mine = split(rows, thread, c.threads());
    for (int row = mine.begin; row < mine.end; ++row) {
      const float* in = x + std::size_t(row) * LDX;
      const float mean = sum_of<WIDTH>(in, [](f32x16 a) { return a; }) / float(WIDTH);
      const float spread = sum_of<WIDTH>(in, [mean](f32x16 a) { return (a - mean) * (a - mean); }) / float(WIDTH);
      const float scale = 1.0f / std::sqrt(spread + eps);
      for (int i = 0; i < WIDTH; i += 16) {
        f32x16 y = (load(in + i) - mean) * scale * load(weight + i);
        if constexpr (BIASED) y = y + load(bias + i);
        T::store_act(out + std::size_t(row) * LDO + i, y);
        if constexpr (ROUNDED) TR::store_act(rounded + std::size_t(row) * LDR + i, y);
      }
    }
  }
};

// SEGMENTS: rows are chosen by segment, else by position.
template <int WIDTH, int LDX, int LDO, int OFFSET, int ROWS, bool SEGMENTS>
FL_KERNEL void add_embedding(const Context& c, int thread, const float* x, const float* table, float* out) {
  const auto* params = static_cast<const SamplingParams*>(c.sampling);
  const Range mine = split(c.step.num_tokens, thread, c.threads());
  for (int row = mine.begin; row < mine.end; ++row) {
    int place = c.token_position[row];
    if constexpr (SEGMENTS) {
      const int second = params[c.token_slot[row]].second_text;
      place = second > 0 && place >= second;
    }
    const float* added = table + std::size_t(min(OFFSET + place, ROWS - 1)) * WIDTH;
    for (int i = 0; i < WIDTH; i += 16) {
      const f32x16 more = WIDTH % 16 != 0 && i + 16 > WIDTH ? load_part(added + i, WIDTH - i) : load(added + i);
      store(out + std::size_t(row) * LDO + i, load(x + std::size_t(row) * LDX + i) + more);
    }
  }
}

// Rows whose kind, the first number of their places, is 2 are those of images.
template <int WIDTH, int LDX, int LDR, int LDP, int LDO, bool ADDS>
FL_KERNEL void merge_rows(const Context& c, int thread, const float* x, const float* rows, const float* places, float* out) {
  c.split_up(thread, c.step.num_tokens, [&](int row) {
    const bool is_image = places[std::size_t(row) * LDP] == 2.0f;
    for (int i = 0; i < WIDTH; i += 16) {
      f32x16 y = load(x + std::size_t(row) * LDX + i);
      if (is_image) {
        const f32x16 other = load(rows + std::size_t(row) * LDR + i);
        y = ADDS ? y + other : other;
      }
      store(out + std::size_t(row) * LDO + i, y);
    }
  });
}

enum class PoolKind { kMean, kMax, kFirst, kLast };

template <int WIDTH, int LDX, int LDO, PoolKind KIND>
FL_KERNEL void pool(const Context& c, int thread, const float* x, float* out) {
  c.split_up(thread, c.step.num_rows, [&](int row) {
    const int last = c.step.row_token[row], count = c.step.row_position[row] + 1;
    const float* first = x + std::size_t(max(0, last + 1 - count)) * LDX;
    for (int i = 0; i < WIDTH; i += 16) {
      f32x16 y = load((KIND == PoolKind::kLast ? x + std::size_t(last) * LDX : first) + i);
      for (int t = 1; t < count && (KIND == PoolKind::kMean || KIND == PoolKind::kMax); ++t) {
        const f32x16 next = load(first + std::size_t(t) * LDX + i);
        y = KIND == PoolKind::kMean ? y + next : max(y, next);
      }
      if constexpr (KIND == PoolKind::kMean) y = y * (1.0f / float(count));
      store(out + std::size_t(row) * LDO + i, y);
    }
  });
}

}  // namespace firelane
