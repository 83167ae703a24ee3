// Products of rows with panels of quantised weights that are decoded to floats (grouped_floats.h).
#pragma once

#include "panels/grouped.h"

namespace firelane {

// Two rows or one: while one unit of inputs is multiplied the next one is decoded. Sums wait for each other, so that
// the work in between is free.
template <class Coded, int M, class SEGMENTS, int LDX>
FL_KERNEL void decode_between(const float* x, const std::uint8_t* panel, Sums& sums) {
  constexpr int K = SEGMENTS::kWords, unit = Coded::kUnit, unit_bytes = Coded::kBlockBytes * unit / (2 * Coded::kSteps);
  alignas(64) float buffers[2][unit * 32];
  constexpr bool in_units = SEGMENTS::in_blocks(unit);  // else a segment may end within one
  f32x16 acc[M][2] = {};
  Tree<M, SEGMENTS> tree;
  int segment = 0;
  const auto ends_behind = [&](int k) FL_LAMBDA { return k + 1 == SEGMENTS::kPlan.end[segment]; };
  Coded::decode_unit(panel, 0, buffers[0], [](int) FL_LAMBDA {});
  for (int k = 0; k < K; k += unit) {
    const float* from = buffers[k / unit % 2];
    const std::uint8_t* codes = panel + std::size_t(k) * unit_bytes / unit;
    const auto multiply = [&](int i) FL_LAMBDA {
      for (int at = 0; at < unit_bytes; at += 64 * unit) {
        __builtin_prefetch(codes + kNearBytes + at + 64 * i, 0, 3);
        __builtin_prefetch(codes + kAheadBytes + at + 64 * i, 0, 2);
      }
      add_products<M, 2, LDX>(acc, x + k + i, {load(from + i * 32), load(from + i * 32 + 16)});
      if constexpr (!in_units)
        if (ends_behind(k + i)) tree.close(segment++, acc);
    };
    if (k + unit < K) {
      Coded::decode_unit(panel, k + unit, buffers[(k / unit + 1) % 2], multiply);
    } else {
      for (int i = 0; i < unit; ++i) multiply(i);
    }
    if constexpr (in_units)
      if (ends_behind(k + unit - 1)) tree.close(segment++, acc);
  }
  leave(acc, sums);
}

template <class Coded, class SEGMENTS, int LDX, int M = kWideRows>
FL_INLINE void decode_between_any(int rows, const float* x, const std::uint8_t* panel, Sums& sums) {
  if constexpr (M > 0) {
    if (rows == M) return decode_between<Coded, M, SEGMENTS, LDX>(x, panel, sums);
    decode_between_any<Coded, SEGMENTS, LDX, M - 1>(rows, x, panel, sums);
  }
}

// Inputs first .. first + count - 1 of a panel: out [count][32]. GCC 12 takes it for a function that writes nothing where
// units have 16 inputs (-fipa-pure-const and -fipa-modref agree on it), and leaves out the call.
template <class Coded>
FL_KERNEL FL_OPAQUE void decode_floats(const std::uint8_t* panel, int first, int count, float* out) {
  for (int k = 0; k < count; k += Coded::kUnit)
    Coded::decode_unit(panel, first + k, out + k * 32, [](int) FL_LAMBDA {});
}

#if !defined(FIRELANE_BF16_DOT)

// More rows than two: the panel is decoded block by block, each of which meets all tiles of many rows.
template <class Coded, int K, class SEGMENTS>
  requires(Coded::kFloats)
struct CodedPanels<Coded, K, SEGMENTS> {
  using type = Bf16;
  using Inputs = typename SEGMENTS::Twice;  // a word is two of them
  static constexpr int kPanelBytes = K / 2 / Coded::kSteps * Coded::kBlockBytes;
  static constexpr int kMostRows = 256;  // that meet a block before it is decoded again
  static constexpr int kBlockFloats = kBlockWords * 32;
  static constexpr std::size_t kScratchBytes = kBlockFloats * 4 + kMostRows * 2 * sizeof(f32x16);

  const CodedWeight& weight;

  FL_INLINE const std::uint8_t* panel(int p) const { return weight.bytes + weight.offsets[p]; }

  template <int LDX, class Store>
  FL_INLINE void multiply(int p0, int p1, int rows, const float* x, void* scratch, const Store& store) const {
    const int turns = (rows + kMostRows - 1) / kMostRows;
    for (int p = p0; p < p1; ++p) {
      if (rows <= kWideRows) {
        Sums sums;
        decode_between_any<Coded, Inputs, LDX>(rows, x, panel(p), sums);
        store_rows(sums, {0, rows}, p, store);
      } else {
        for (int i = 0; i < turns; ++i) multiply_some<LDX>(p, split(rows, i, turns), x, scratch, store);
      }
    }
  }

  template <int LDX, class Store>
  FL_INLINE void multiply_some(int p, Range r, const float* x, void* scratch, const Store& store) const {
    auto* kept = static_cast<float*>(scratch);
    auto* sums = reinterpret_cast<f32x16(*)[2]>(kept + kBlockFloats);
    const auto block = [&](int first) FL_LAMBDA {
      decode_floats<Coded>(panel(p), first, min(kBlockWords, K - first), kept);
      return static_cast<const float*>(kept);
    };
    constexpr int bytes = int(std::size_t(kPanelBytes) * kBlockWords / K);
    const auto next = [&](int first) FL_LAMBDA {
      return reinterpret_cast<const char*>(panel(p)) + std::size_t(first) * kPanelBytes / K + bytes;
    };
    const int rows = r.end - r.begin;
    few_rows<F32, Inputs, LDX, kMostRows>(rows, x + std::size_t(r.begin) * LDX, block, next, bytes, sums);
    store_rows(sums, r, p, store);
  }
};

#endif

}  // namespace firelane
