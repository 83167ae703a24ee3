// Low-rank adapters: the two thin products of each row with the factors of its sequence's adapter.
//
// A place holds the factors of one adapter. First factors lie in vectors of 16 ranks: for each word of k, 16 lanes side
// by side. Second factors lie in tiles of 16 outputs: for each pair of ranks, 16 lanes of bf16 pairs. Rows that follow
// each other and have one adapter share the loads of its factors. A sum has one order, whatever rows are beside it.
#pragma once

#include "context.h"

namespace firelane {

// What an adapter has for one part of a weight; rank 0: nothing.
struct LoraHead {
  std::int32_t rank;
  float scale;
};

// The adapters as one weight sees them.
struct LoraTable {
  const std::int32_t* places;   // by slot
  const LoraHead* heads;        // of place 0, from the weight's first part on
  int parts;                    // from one place's heads to the next
  const std::uint8_t* factors;  // of the weight in place 1
  std::size_t place_bytes;

  FL_INLINE int place(int slot) const { return places[slot]; }
  FL_INLINE const LoraHead* of(int place) const { return heads + std::size_t(place) * parts; }
  template <class T>
  FL_INLINE const T* at(int place) const {
    return reinterpret_cast<const T*>(factors + std::size_t(place - 1) * place_bytes);
  }
};

constexpr int kLoraRows = 8;

// Rows from `row` on that have one place, at most kLoraRows and none from `end` on, as a size that there is a kernel for.
FL_INLINE int lora_run(const LoraTable& table, const std::int32_t* slots, int row, int end) {
  const int place = table.place(slots[row]);
  int count = 1;
  while (count < kLoraRows && row + count < end && table.place(slots[row + count]) == place) ++count;
  return count == kLoraRows ? count : count >= 4 ? 4 : 1;
}

// 16 ranks of M rows: k in four quarters, each in increasing order.
template <class T, int K, int M, int LDX>
FL_INLINE void lora_dots(const typename T::act* x, const typename T::word* words, f32x16 (&out)[M]) {
  constexpr int count = K / T::kPerWord, quarter = count / 4;
  f32x16 acc[4][M][1] = {};
  const auto step = [&](int q, int k) FL_LAMBDA {
    T::template step<M, 1, LDX>(acc[q], x + k * T::kPerWord, {load(words + std::size_t(k) * 16)});
  };
  if constexpr (M == 1) {
    for (int k = 0; k < quarter; ++k)
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) step(q, count * q / 4 + k);
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q)
      for (int k = count * q / 4 + quarter; k < count * (q + 1) / 4; ++k) step(q, k);
  } else {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q)
      for (int k = count * q / 4; k < count * (q + 1) / 4; ++k) step(q, k);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) out[m] = (acc[0][m][0] + acc[1][m][0]) + (acc[2][m][0] + acc[3][m][0]);
}

template <class T, int K, int M, int LDX, int LDY>
FL_KERNEL void lora_shrink_rows(const typename T::act* x, const typename T::word* words, float scale, float* y) {
  f32x16 sums[M];
  lora_dots<T, K, M, LDX>(x, words, sums);
  for (int m = 0; m < M; ++m) store(y + std::size_t(m) * LDY, sums[m] * scale);
}

// PARTS parts of RANK numbers, a multiple of 16, in each row of y.
template <class T, int K, int PARTS, int RANK, int LDX, int LDY>
FL_KERNEL void lora_shrink(const Context& c, int thread, int rows, const std::int32_t* slots, const LoraTable& table,
                           const typename T::act* x, float* y) {
  constexpr int vectors = RANK / 16;
  const int tiles = (rows + kLoraRows - 1) / kLoraRows;
  c.split_up(thread, tiles * PARTS * vectors, [&](int item) {
    const int vector = item % (PARTS * vectors), part = vector / vectors;
    const int begin = item / (PARTS * vectors) * kLoraRows, end = min(begin + kLoraRows, rows);
    for (int row = begin, count; row < end; row += count) {
      count = lora_run(table, slots, row, end);
      const int place = table.place(slots[row]);
      const LoraHead head = table.of(place)[part];
      float* to = y + std::size_t(row) * LDY + vector * 16;
      if (head.rank <= vector % vectors * 16) {
        for (int m = 0; m < count; ++m) store(to + std::size_t(m) * LDY, splat(0.0f));
        continue;
      }
      const auto* words = table.at<typename T::word>(place) + std::size_t(vector) * (K / T::kPerWord) * 16;
      const auto* from = x + std::size_t(row) * LDX;
      if (count == 8)
        lora_shrink_rows<T, K, 8, LDX, LDY>(from, words, head.scale, to);
      else if (count == 4)
        lora_shrink_rows<T, K, 4, LDX, LDY>(from, words, head.scale, to);
      else
        lora_shrink_rows<T, K, 1, LDX, LDY>(from, words, head.scale, to);
    }
  });
}

// Blocks of 16 outputs, and which parts each has tiles of.
struct LoraTiles {
  const std::int32_t* first;  // by block: its first tile; and one more entry
  const std::int32_t* part;   // by tile
};

template <int RANK, int M, int LDY, int LDR, int LDO, bool RESIDUAL, bool SCALED>
FL_KERNEL void lora_expand_rows(const LoraTiles& tiles, Range blocks, const LoraHead* heads,
                                const std::uint32_t* words, const float* y, const float* residual, float scale,
                                float* out) {
  for (int block = blocks.begin; block < blocks.end; ++block) {
    f32x16 acc[M] = {};
    for (int tile = tiles.first[block]; tile < tiles.first[block + 1]; ++tile) {
      const int part = tiles.part[tile], pairs = (heads[part].rank + 1) / 2;
      const std::uint32_t* from = words + std::size_t(tile) * (RANK / 2 * 16);
      const float* numbers = y + part * RANK;
      for (int pair = 0; pair < pairs; ++pair) {
        const u32x16 both = load(from + pair * 16);
        const f32x16 even = as_f32(both << 16), odd = as_f32(both & 0xFFFF0000u);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          acc[m] = fmadd(even, splat(numbers[std::size_t(m) * LDY + 2 * pair]), acc[m]);
          acc[m] = fmadd(odd, splat(numbers[std::size_t(m) * LDY + 2 * pair + 1]), acc[m]);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      if constexpr (SCALED) acc[m] = acc[m] * scale;
      if constexpr (RESIDUAL) acc[m] += load(residual + std::size_t(m) * LDR + block * 16);
      store(out + std::size_t(m) * LDO + block * 16, acc[m]);
    }
  }
}

template <int LDR, int LDO, bool RESIDUAL>
FL_INLINE void lora_copy(Range blocks, int rows, const float* residual, float* out) {
  for (int m = 0; m < rows; ++m)
    for (int i = blocks.begin * 16; i < blocks.end * 16; i += 16)
      store(out + std::size_t(m) * LDO + i, RESIDUAL ? load(residual + std::size_t(m) * LDR + i) : splat(0.0f));
}

// N outputs of PARTS parts; A_WORDS: words of the weight's first factors, which lie before its tiles.
template <int N, int PARTS, int RANK, std::size_t A_WORDS, int LDY, int LDR, int LDO, bool RESIDUAL, bool SCALED>
FL_KERNEL void lora_expand(const Context& c, int thread, int rows, const std::int32_t* slots, const LoraTable& table,
                           const LoraTiles& tiles, const float* y, const float* residual, float scale, float* out) {
  const Range blocks = split((N + 15) / 16, thread, c.threads());
  for (int row = 0, count; row < rows; row += count) {
    count = lora_run(table, slots, row, rows);
    const int place = table.place(slots[row]);
    const LoraHead* heads = table.of(place);
    const float* added = RESIDUAL ? residual + std::size_t(row) * LDR : nullptr;
    const float* from = y + std::size_t(row) * LDY;
    float* to = out + std::size_t(row) * LDO;
    int rank = 0;
    for (int part = 0; part < PARTS; ++part) rank = max(rank, int(heads[part].rank));
    if (rank == 0) {
      lora_copy<LDR, LDO, RESIDUAL>(blocks, count, added, to);
      continue;
    }
    const std::uint32_t* words = table.at<std::uint32_t>(place) + A_WORDS;
    if (count == 8)
      lora_expand_rows<RANK, 8, LDY, LDR, LDO, RESIDUAL, SCALED>(tiles, blocks, heads, words, from, added, scale, to);
    else if (count == 4)
      lora_expand_rows<RANK, 4, LDY, LDR, LDO, RESIDUAL, SCALED>(tiles, blocks, heads, words, from, added, scale, to);
    else
      lora_expand_rows<RANK, 1, LDY, LDR, LDO, RESIDUAL, SCALED>(tiles, blocks, heads, words, from, added, scale, to);
  }
}

// A store of gated sums, UP gate columns and as many up columns, to which a row of `delta` is added first.
template <int LDD, int UP, class Store>
struct StoreWithDelta {
  const float* delta;
  Store store;
  FL_INLINE void operator()(int row, int panel, f32x16 gate, f32x16 up) const {
    const float* from = delta + std::size_t(row) * LDD + panel * 16;
    store(row, panel, gate + load(from), up + load(from + UP));
  }
};

template <int LDD, int UP, class Store>
FL_INLINE StoreWithDelta<LDD, UP, Store> with_delta(const float* delta, const Store& store) {
  return {delta, store};
}

}  // namespace firelane
