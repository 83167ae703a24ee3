// Matrix products of a few to a few hundred rows with packed weights.
//
// A panel holds 32 outputs: for each word of k, 32 lanes side by side. A tile of up to kTileRows rows by 32 outputs, or
// by 16 where registers are few, stays in registers while k is summed in increasing order, segment by segment: an
// output's bits do not depend on the other rows, and not on the form of the weights (PlainPanels here, CodedPanels in
// coded.h).
#pragma once

#include "context.h"
#include "products/gates.h"
#include "products/segments.h"

namespace firelane {

// Weights that lie within this many bytes are walked panel by panel for one tile of rows before the next tile: they
// stay in the second-level cache while rows stream past.
constexpr int kPanelGroupBytes = 128 * 1024;

// Weights smaller than this are split evenly: threads would lose more by counting than they gain by evening out.
constexpr std::size_t kShareOutBytes = 4 << 20;

// How far ahead a single tile of rows fetches its panel: into the second-level cache, coded panels from there into the
// first. Few rows (kFetchRows in vec_*.h) only wait for memory, and the hardware's own prefetch does that best.
constexpr int kAheadBytes = 16384;
constexpr int kNearBytes = 2048;

// What a tile fetches into the second-level cache while it computes: `stride` bytes further for each word of k.
struct Ahead {
  const char* from;
  int stride;

  // The part of [begin, end) that tile `i` of `tiles` fetches, each over `words` words of k.
  static FL_INLINE Ahead share(const char* begin, const char* end, int i, int tiles, int words) {
    const std::size_t bytes = end - begin;
    return {begin + bytes * i / tiles, int((bytes / words + tiles - 1) / tiles)};
  }

  FL_INLINE void fetch() {
    __builtin_prefetch(from, 0, 2);
    __builtin_prefetch(from + 64, 0, 2);
    from += stride;
  }
  FL_INLINE void fetch_line() {
    __builtin_prefetch(from, 0, 2);
    from += stride;
  }
  // What is fetched from word k on.
  FL_INLINE Ahead at(int k) const { return {from + std::ptrdiff_t(k) * stride, stride}; }
};

// The sums of a tile: of each row 32 outputs. They pass through memory, so that all products of one K share their code,
// whatever becomes of the sums.
using Sums = f32x16[kTileRows][2];

template <int M>
FL_INLINE void leave(const f32x16 (&acc)[M][2], Sums& sums) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    sums[m][0] = acc[m][0];
    sums[m][1] = acc[m][1];
  }
}

template <class T, int M, class SEGMENTS, int LDX>
FL_INLINE void whole_panel(const typename T::act* x, const typename T::word* panel, Ahead ahead, Sums& sums) {
  f32x16 acc[M][2] = {};
  Tree<M, SEGMENTS> tree;
  for (int i = 0, k = 0; i < SEGMENTS::kCount; ++i) {
    const int end = SEGMENTS::kPlan.end[i];
#pragma GCC unroll 4
    for (; k < end; ++k) {
      const typename T::word* const w[2] = {panel + k * 32, panel + k * 32 + 16};
      if constexpr (M >= kFetchRows) ahead.fetch();
      step_from<T, M, 2, LDX>(acc, x + k * T::kPerWord, w);
    }
    tree.close(i, acc);
  }
  leave(acc, sums);
}

// Words of k that narrow tiles sum before they go on: both halves of the panel, and all tiles of a few rows, find them
// and the rows' activations in the first-level cache.
constexpr int kBlockWords = 128;

// One half of a panel, `count` words of k from `words` on, added to what `sums` has of M rows.
template <class T, int M, int LDX>
FL_INLINE void half_block(const typename T::act* x, const typename T::word* words, int count, int half, Ahead ahead,
                          f32x16 (*sums)[2]) {
  f32x16 acc[M][1];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) acc[m][0] = sums[m][half];
#pragma GCC unroll 2
  for (int k = 0; k < count; ++k) {
    const typename T::word* const w[1] = {words + k * 32 + half * 16};
    ahead.fetch_line();
    step_from<T, M, 1, LDX>(acc, x + k * T::kPerWord, w);
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) sums[m][half] = acc[m][0];
}

template <class T, int M, int LDX>
FL_KERNEL void tile_block(const typename T::act* x, const typename T::word* words, int count, Ahead ahead,
                          f32x16 (*sums)[2]) {
  half_block<T, M, LDX>(x, words, count, 0, ahead, sums);
  half_block<T, M, LDX>(x, words, count, 1, ahead.at(kBlockWords), sums);
}

template <class T, int LDX, int M = kTileRows>
FL_INLINE void block_any(int rows, const typename T::act* x, const typename T::word* words, int count, Ahead ahead,
                         f32x16 (*sums)[2]) {
  if constexpr (M > kWideRows) {
    if (rows == M) return tile_block<T, M, LDX>(x, words, count, ahead, sums);
    block_any<T, LDX, M - 1>(rows, x, words, count, ahead, sums);
  }
}

// Rows that are summed block by block: all tiles of a block before the next block.
constexpr int kFewRows = 2 * kTileRows;
FL_INLINE bool are_few(int rows) { return kWideRows < kTileRows && kWideRows < rows && rows <= kFewRows; }
static_assert(kWideRows == kTileRows || kWideRows < (kTileRows + 1) / 2, "one of several tiles is never wide");

// Few rows, MOST of them at most, times one panel. `block(k)` gives where its words lie from k on,
// as far as the next multiple of kBlockWords; meanwhile `ahead(k)`, so many bytes, are fetched.
template <class T, class SEGMENTS, int LDX, int MOST = kFewRows, class Block, class Fetched>
FL_INLINE void few_rows(int rows, const typename T::act* x, const Block& block, const Fetched& ahead, int bytes,
                        f32x16 (*sums)[2]) {
  constexpr int words = SEGMENTS::kWords;
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  for (int m = 0; m < rows; ++m) sums[m][0] = sums[m][1] = splat(0.0f);
  Tree<MOST, SEGMENTS> tree;
  for (int k = 0, segment = 0; k < words; k += kBlockWords) {
    const typename T::word* from = block(k);
    const char* fetched = ahead(k);
    const int last = min(kBlockWords, words - k);
    for (int done = 0, end; done < last; done = end) {
      end = min(last, SEGMENTS::kPlan.end[segment] - k);
      for (int i = 0; i < tiles; ++i) {
        const Range r = split(rows, i, tiles);
        const auto* acts = x + std::size_t(r.begin) * LDX + (k + done) * T::kPerWord;
        const Ahead share = Ahead::share(fetched, fetched + bytes, i, tiles, 2 * kBlockWords).at(done);
        block_any<T, LDX>(r.end - r.begin, acts, from + done * 32, end - done, share, sums + r.begin);
      }
      if (k + end == SEGMENTS::kPlan.end[segment]) tree.close(segment++, sums, rows);
    }
  }
}

template <class T, int M, class SEGMENTS, int LDX>
FL_KERNEL void tile_rows(const typename T::act* x, const typename T::word* panel, Ahead ahead, Sums& sums) {
  if constexpr (tile_width(M) == 2) {
    whole_panel<T, M, SEGMENTS, LDX>(x, panel, ahead, sums);
  } else {
    const auto block = [&](int k) FL_LAMBDA { return panel + k * 32; };
    const auto fetched = [&](int k) FL_LAMBDA { return ahead.at(k).from; };
    few_rows<T, SEGMENTS, LDX>(M, x, block, fetched, kBlockWords * ahead.stride, sums);
  }
}

template <class T, class SEGMENTS, int LDX, int LEAST = 1, int M = kTileRows>
FL_INLINE void tile_any(int rows, const typename T::act* x, const typename T::word* panel, Ahead ahead, Sums& sums) {
  if constexpr (M >= LEAST) {
    if (rows == M) return tile_rows<T, M, SEGMENTS, LDX>(x, panel, ahead, sums);
    tile_any<T, SEGMENTS, LDX, LEAST, M - 1>(rows, x, panel, ahead, sums);
  }
}

template <class Store>
FL_INLINE void store_rows(const f32x16 (*sums)[2], Range rows, int p, const Store& store) {
  for (int row = rows.begin; row < rows.end; ++row) {
    const auto& sum = sums[row - rows.begin];
    store(row, p, sum[0], sum[1]);
  }
}

// Panels as they are multiplied: words side by side.
template <class T, int K, class SEGMENTS = Segments<K / T::kPerWord>>
struct PlainPanels {
  using type = T;
  static constexpr std::size_t kPanelWords = std::size_t(K / T::kPerWord) * 32;
  static constexpr int kPanelBytes = int(kPanelWords * 4);

  const typename T::word* words;

  FL_INLINE const typename T::word* panel(int p) const { return words + p * kPanelWords; }

  // All rows times panels p0 .. p1 - 1.
  template <int LDX, class Store>
  FL_INLINE void multiply(int p0, int p1, int rows, const typename T::act* x, void*, const Store& store) const {
    if (!are_few(rows)) return multiply_tiles<LDX>(p0, p1, rows, x, store);
    for (int p = p0; p < p1; ++p) multiply_few<LDX>(p, rows, x, store);
  }

  // One tile fetches what it will need itself a little later; several a share of the panel that follows this group.
  FL_INLINE Ahead ahead(int p, int panels, int i, int tiles) const {
    const auto* bytes = reinterpret_cast<const char*>(panel(p));
    const auto* next = bytes + std::size_t(panels) * kPanelBytes;
    return tiles == 1 ? Ahead{bytes + kAheadBytes, 128}
                      : Ahead::share(next, next + kPanelBytes, i, tiles, K / T::kPerWord);
  }

  template <int LDX, class Store>
  FL_INLINE void multiply_few(int p, int rows, const typename T::act* x, const Store& store) const {
    f32x16 sums[kFewRows][2];
    const auto* words = panel(p);
    const auto block = [&](int k) FL_LAMBDA { return words + k * 32; };
    const auto next = [&](int k) FL_LAMBDA { return reinterpret_cast<const char*>(block(k + kBlockWords)); };
    few_rows<T, SEGMENTS, LDX>(rows, x, block, next, kBlockWords * 128, sums);
    store_rows(sums, {0, rows}, p, store);
  }

  template <int LDX, class Store>
  FL_INLINE void multiply_tiles(int p0, int p1, int rows, const typename T::act* x, const Store& store) const {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    Sums sums;
    for (int i = 0; i < tiles; ++i) {
      const Range r = split(rows, i, tiles);
      for (int p = p0; p < p1; ++p) {
        const auto* from = x + std::size_t(r.begin) * LDX;
        tile_any<T, SEGMENTS, LDX>(r.end - r.begin, from, panel(p), ahead(p, p1 - p0, i, tiles), sums);
        store_rows(sums, r, p, store);
      }
    }
  }
};

// store(row, panel, lanes 0-15, lanes 16-31) for every row and every panel.
template <int PANELS, int LDX, class Panels, class Store>
FL_KERNEL void linear(const Context& c, int thread, int op, int rows, const typename Panels::type::act* x,
                      const Panels& panels, const Store& store) {
  constexpr int most = max(1, kPanelGroupBytes / Panels::kPanelBytes);
  const int group =
      clamp(PANELS / (8 * c.threads()), 1, most);  // some items for each thread, so that they can even out
  const auto work = [&](int item) {
    const int p0 = item * group, p1 = min(p0 + group, int(PANELS));
    panels.template multiply<LDX>(p0, p1, rows, x, c.thread_scratch(thread), store);
  };
  const int items = (PANELS + group - 1) / group;
  if constexpr (std::size_t(PANELS) * Panels::kPanelBytes >= kShareOutBytes)
    c.for_each_stealing(op, thread, items, work);
  else
    c.split_up(thread, items, work);
}

template <int LDO, int LDR, bool BIAS, bool RESIDUAL, bool SCALED, bool CAPPED>
struct StoreF32 {
  float* out;
  const float* bias;
  const float* residual;
  float scale, cap;

  FL_INLINE f32x16 finished(f32x16 sum, int row, int column) const {
    if constexpr (BIAS) sum += load(bias + column);
    if constexpr (SCALED) sum = sum * scale;
    if constexpr (RESIDUAL) sum += load(residual + std::size_t(row) * LDR + column);
    if constexpr (CAPPED) sum = tanh_16(sum / cap) * cap;
    return sum;
  }
  FL_INLINE void operator()(int row, int panel, f32x16 a, f32x16 b) const {
    float* to = out + std::size_t(row) * LDO + panel * 32;
    firelane::store(to, finished(a, row, panel * 32));
    firelane::store(to + 16, finished(b, row, panel * 32 + 16));
  }
};

// A panel of 16 gate and 16 up outputs gives 16 values of GATE's function.
template <class T, int LDO, bool BIAS, class GATE>
struct StoreGated {
  typename T::act* out;
  const float* bias;
  GATE function;
  FL_INLINE void operator()(int row, int panel, f32x16 gate, f32x16 up) const {
    if constexpr (BIAS) {
      gate += load(bias + panel * 32);
      up += load(bias + panel * 32 + 16);
    }
    T::store_act(out + std::size_t(row) * LDO + panel * 16, function(gate, up));
  }
};

}  // namespace firelane
