// What ranks do with the rows of all of them: sums, and rows of which each has some columns.
#pragma once

#include "ranks/hosts.h"
#include "ranks/link.h"

namespace firelane {

// Each rank has written its columns where the first one reads all of them. ROW_BYTES: from one row to the next.
template <std::size_t ROW_BYTES>
FL_KERNEL void gather(const Context& c, int thread, int index, std::uint8_t* own, int rows) {
  if (thread == 0 && c.peer_count) collect_columns(c, own, ROW_BYTES, rows);
  meet(c, thread, index);
}

// This rank's rows of those of all tokens.
template <std::size_t ROW_BYTES>
FL_KERNEL void take_rows(const Context& c, int thread, const std::uint8_t* x, std::uint8_t* out) {
  const Range mine = split(c.own->step.num_tokens, thread, c.threads());
  std::memcpy(out + mine.begin * ROW_BYTES, x + (c.own_first + mine.begin) * ROW_BYTES,
              (mine.end - mine.begin) * ROW_BYTES);
}

// The rows of all tokens, of which each rank has its own where all read them. parts: of the first rank.
template <std::size_t ROW_BYTES>
FL_KERNEL void gather_rows(const Context& c, int thread, int index, const std::uint8_t* parts, std::uint8_t* out) {
  meet(c, thread, index);
  for (int lane = 0; lane < c.ranks; ++lane) {
    const Range rows = split(c.step.num_tokens, lane, c.ranks);
    const Range mine = split(rows.end - rows.begin, thread, c.threads());
    std::memcpy(out + (rows.begin + mine.begin) * ROW_BYTES, parts + lane * c.shared_apart + mine.begin * ROW_BYTES,
                (mine.end - mine.begin) * ROW_BYTES);
  }
}

// What each rank has of each of SLOTS parts of a row, beside each other, and the residual, LDR of whose elements are from
// one row to the next, if there is one: 0. Widths are those of ranks in a slot; all in bytes.
template <std::size_t ROW_BYTES, std::size_t OUT_BYTES, int SLOTS, int LDR, std::size_t... WIDTHS>
FL_KERNEL void gather_columns(const Context& c, int thread, int index, const std::uint8_t* parts, std::uint8_t* out,
                              const float* residual) {
  meet(c, thread, index);
  const Range mine = split(c.step.num_tokens, thread, c.threads());
  for (int row = mine.begin; row < mine.end; ++row) {
    std::uint8_t* to = out + row * OUT_BYTES;
    for (int slot = 0; slot < SLOTS; ++slot) {
      const std::uint8_t* from = parts + row * ROW_BYTES;
      ((std::memcpy(to, from + slot * WIDTHS, WIDTHS), to += WIDTHS, from += c.shared_apart), ...);
    }
    if constexpr (LDR != 0) {
      float* sums = reinterpret_cast<float*>(out + row * OUT_BYTES);
      constexpr int width = SLOTS * (WIDTHS + ...) / sizeof(float);
      for (int i = 0; i < width; i += 16) store(sums + i, load(sums + i) + load(residual + std::size_t(row) * LDR + i));
    }
  }
}

// LDP, LDO, LDR: elements from one row of the parts, of out and of the residual to the next.
template <int RANKS, int WIDTH, int LDP, int LDO, int LDR, bool BIAS, bool RESIDUAL, bool SCALED>
struct AllReduce {
  const float* parts;  // of the first rank
  std::size_t apart;   // elements from one rank's to the next's
  float* out;
  const float* bias;
  const float* residual;
  float scale;

  static std::uint8_t* bytes(const float* at) { return reinterpret_cast<std::uint8_t*>(const_cast<float*>(at)); }

  template <int N>
  FL_INLINE f32x16 sum(const float* from) const {
    if constexpr (N == 1) return load(from);
    else return sum<N / 2>(from) + sum<N - N / 2>(from + N / 2 * apart);
  }

  FL_KERNEL void run(const Context& c, int thread, int index, int rows) const {
    if (thread == 0 && c.peer_count) share_parts(c, bytes(parts), apart * sizeof(float), rows * LDP * sizeof(float));
    meet(c, thread, index);
    constexpr int vectors = (WIDTH + 15) / 16;
    const Range mine = split(rows * vectors, thread, c.threads());
    for (int item = mine.begin; item < mine.end; ++item) {
      const std::size_t row = item / vectors, column = item % vectors * 16;
      f32x16 total = sum<RANKS>(parts + row * LDP + column);
      if constexpr (BIAS) total += load(bias + column);
      if constexpr (SCALED) total = total * scale;
      if constexpr (RESIDUAL) total += load(residual + row * LDR + column);
      store(out + row * LDO + column, total);
    }
  }
};

}  // namespace firelane
