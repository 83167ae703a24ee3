// ShortConv: a causal convolution of each channel over the last TAPS tokens.
//
// A work item is a run of channels of one chunk; its tokens are walked in order, each from the rows of the tokens before
// it, those of earlier steps from the state.
#pragma once

#include "products/gates.h"

namespace firelane {

// WIDTH: channels; GATE: the function of sums; LDX, LDO: from one row to the next.
template <int TAPS, int WIDTH, int LDX, int LDO, bool BIAS, class GATE>
struct ShortConv {
  static constexpr int kPast = TAPS - 1;      // rows of the state
  static constexpr int kChannels = 256;       // of an item
  static constexpr int kItems = (WIDTH + kChannels - 1) / kChannels;

  const float *x, *weight, *bias;
  StatePlace state;
  float* out;

  FL_KERNEL void run(const Context& c, int thread, int op) const {
    c.for_each_stealing(op, thread, c.step.num_chunks * kItems, [&](int item) {
      run_item(c, item / kItems, item % kItems * kChannels);
    });
  }

 private:
  FL_INLINE void run_item(const Context& c, int chunk, int first) const {
    alignas(64) static constexpr float zeros[kChannels] = {};
    const int from = c.step.chunk_from[chunk], tokens = c.step.chunk_len[chunk];
    const int channels = min(kChannels, WIDTH - first);
    const float* past[kPast];  // the tokens before the chunk, the oldest first
    for (int i = 0; i < kPast; ++i) past[i] = from < 0 ? zeros : c.state(state, from) + i * WIDTH + first;
    const std::size_t row = c.chunk_row[chunk];
    const float* rows = x + row * LDX + first;
    for (int t = 0; t < tokens; ++t) {
      const float* taps[TAPS];
      for (int j = 0; j < TAPS; ++j) taps[j] = token(past, rows, t - kPast + j);
      convolve(taps, first, channels, out + (row + t) * LDO + first);
    }
    keep(c, chunk, past, rows, first, channels);
  }

  // Of the chunk, or if `t` is negative one before it.
  static FL_INLINE const float* token(const float* const (&past)[kPast], const float* rows, int t) {
    return t < 0 ? past[kPast + t] : rows + std::size_t(t) * LDX;
  }

  FL_INLINE void convolve(const float* const (&taps)[TAPS], int first, int channels, float* y) const {
    int i = 0;
    for (; i + 16 <= channels; i += 16) {
      f32x16 sum = load(taps[0] + i) * load(weight + first + i);
      for (int j = 1; j < TAPS; ++j) sum = fmadd(load(taps[j] + i), load(weight + j * WIDTH + first + i), sum);
      if constexpr (BIAS) sum += load(bias + first + i);
      store(y + i, GATE{}(sum, splat(1.0f)));
    }
    if (i == channels) return;
    const int left = channels - i;
    f32x16 sum = load_part(taps[0] + i, left) * load_part(weight + first + i, left);
    for (int j = 1; j < TAPS; ++j)
      sum = fmadd(load_part(taps[j] + i, left), load_part(weight + j * WIDTH + first + i, left), sum);
    if constexpr (BIAS) sum += load_part(bias + first + i, left);
    store(y + i, GATE{}(sum, splat(1.0f)));  // rows of values are padded
  }

  // The last tokens, and those before a draft, in ascending order: in the state from which the chunk goes on, those that
  // stay move down.
  FL_INLINE void keep(const Context& c, int chunk, const float* const (&past)[kPast], const float* rows, int first,
                      int channels) const {
    const int tokens = c.step.chunk_len[chunk], drafted = c.step.chunk_drafted[chunk], save = c.step.chunk_save[chunk];
    float* live = c.state(state, c.step.chunk_slot[chunk]) + first;
    float* spare = drafted ? c.state(state, c.step.chunk_spare[chunk]) + first : nullptr;
    for (int i = 0; i < kPast; ++i) {
      std::memcpy(live + i * WIDTH, token(past, rows, tokens - drafted - kPast + i), channels * sizeof(float));
      if (drafted) std::memcpy(spare + i * WIDTH, token(past, rows, tokens - kPast + i), channels * sizeof(float));
    }
    if (save < 0) return;
    for (int i = 0; i < kPast; ++i)
      std::memcpy(c.state(state, save) + i * WIDTH + first, live + i * WIDTH, channels * sizeof(float));
  }
};

}  // namespace firelane
