// Matrix products of a few to a few hundred rows with packed weights.
//
// A panel holds 32 outputs: for each word of k, 32 lanes side by side. A tile of up to kTileRows rows by 32 outputs
// stays in registers for the whole of k, which is summed in increasing order: an output's bits do not depend on the
// other rows.
#pragma once

#include <algorithm>

#include "context.h"

namespace firelane {

// Weight words that lie within this many bytes are walked panel by panel for one tile of rows before the next tile:
// they stay in the second-level cache while rows stream past.
constexpr int kPanelGroupBytes = 128 * 1024;

// Weights smaller than this are split evenly: threads would lose more by counting than they gain by evening out.
constexpr std::size_t kShareOutBytes = 4 << 20;

// How far ahead a single tile of rows fetches: it waits for memory, and the hardware stops at page ends.
constexpr int kAheadBytes = 8192;

// What a tile fetches into the second-level cache while it computes: `stride` bytes further for each word of k.
struct Ahead {
  const char* from;
  int stride;
};

template <class T, int M, int K, int LDX, class Store>
FL_KERNEL void tile_rows(const typename T::act* x, const typename T::word* panel, Ahead ahead, int row, int p,
                         const Store& store) {
  f32x16 acc[M][2] = {};
  x += std::size_t(row) * LDX;
#pragma GCC unroll 4
  for (int k = 0; k < K / T::kPerWord; ++k) {
    const typename T::word* const w[2] = {panel + k * 32, panel + k * 32 + 16};
    __builtin_prefetch(ahead.from, 0, 2);
    __builtin_prefetch(ahead.from + 64, 0, 2);
    ahead.from += ahead.stride;
    T::template step<M, 2, LDX>(acc, x + k * T::kPerWord, w);
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) store(row + m, p, acc[m][0], acc[m][1]);
}

template <class T, int K, int LDX, class Store, int M = kTileRows>
FL_INLINE void tile_any(int rows, const typename T::act* x, const typename T::word* panel, Ahead ahead, int row, int p,
                        const Store& store) {
  if constexpr (M >= 1) {
    if (rows == M) return tile_rows<T, M, K, LDX>(x, panel, ahead, row, p, store);
    tile_any<T, K, LDX, Store, M - 1>(rows, x, panel, ahead, row, p, store);
  }
}

// store(row, panel, lanes 0-15, lanes 16-31) for every row and every panel.
template <class T, int PANELS, int K, int LDX, class Store>
FL_KERNEL void linear(const Context& c, int thread, int op, int rows, const typename T::act* x,
                      const typename T::word* weights, const Store& store) {
  constexpr std::size_t panel_words = std::size_t(K / T::kPerWord) * 32;
  constexpr int panel_bytes = int(panel_words * 4);
  constexpr int most = std::max(1, kPanelGroupBytes / panel_bytes);
  const int group =
      std::clamp(PANELS / (8 * c.threads()), 1, most);  // some items for each thread, so that they can even out
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const auto work = [&](int item) {
    const int p0 = item * group, p1 = std::min(p0 + group, int(PANELS));
    for (int i = 0; i < tiles; ++i) {
      const Range r = split(rows, i, tiles);
      for (int p = p0; p < p1; ++p) {
        const auto* panel = weights + p * panel_words;
        const auto* bytes = reinterpret_cast<const char*>(panel);
        // One tile: what it will need itself a little later. Several: a share of the panel that follows this group.
        const Ahead ahead = tiles == 1
                                ? Ahead{bytes + kAheadBytes, 128}
                                : Ahead{bytes + std::size_t(group) * panel_bytes + std::size_t(panel_bytes) * i / tiles,
                                        (128 + tiles - 1) / tiles};
        tile_any<T, K, LDX>(r.end - r.begin, x, panel, ahead, r.begin, p, store);
      }
    }
  };
  const int items = (PANELS + group - 1) / group;
  if constexpr (std::size_t(PANELS) * panel_bytes >= kShareOutBytes)
    c.share_out(op, thread, items, work);
  else
    c.split_up(thread, items, work);
}

template <int LDO, int LDR, bool BIAS, bool RESIDUAL>
struct StoreF32 {
  float* out;
  const float* bias;
  const float* residual;
  FL_INLINE void operator()(int row, int panel, f32x16 a, f32x16 b) const {
    if constexpr (BIAS) {
      a += load(bias + panel * 32);
      b += load(bias + panel * 32 + 16);
    }
    if constexpr (RESIDUAL) {
      a += load(residual + std::size_t(row) * LDR + panel * 32);
      b += load(residual + std::size_t(row) * LDR + panel * 32 + 16);
    }
    firelane::store(out + std::size_t(row) * LDO + panel * 32, a);
    firelane::store(out + std::size_t(row) * LDO + panel * 32 + 16, b);
  }
};

// A panel of 16 gate and 16 up outputs gives 16 values silu(gate) * up.
template <class T, int LDO, bool BIAS>
struct StoreGated {
  typename T::act* out;
  const float* bias;
  FL_INLINE void operator()(int row, int panel, f32x16 gate, f32x16 up) const {
    if constexpr (BIAS) {
      gate += load(bias + panel * 32);
      up += load(bias + panel * 32 + 16);
    }
    const f32x16 silu = gate / (1.0f + exp_16(-max(gate, splat(-87.0f))));
    T::store_act(out + std::size_t(row) * LDO + panel * 16, silu * up);
  }
};

}  // namespace firelane
