// Products of integers: rows whose inputs were rounded to eight bits, times quantised weights whose codes are whole
// numbers. firelane/program/integer_products.py says what is computed: dot products of codes, exact, of one unit of inputs
// after the other, each times its scales in float32.
//
// Panels are those that are decoded to bf16 elsewhere (grouped.h). A lane of a register is an output, and has the codes
// of four inputs; rows of inputs are written in the order in which codes give them. A few rows unpack codes
// in registers; for more, a panel is unpacked into scratch first.
#pragma once

#include "panels/int8_codes.h"

namespace firelane {

// A group of inputs none of which is larger counts as zeros: its scale would have no inverse.
constexpr float kLeastCounted = 0x1p-100f;

// Inputs that have their own scale in either factor, as they lie in a row. `raised`: what the products of codes are too
// large by, negated, as weights are stored as numbers that are raised by an offset; `sum`: of the numbers.
template <int UNIT>
struct Int8Unit {
  std::int8_t codes[UNIT];
  float scale;
  std::int32_t raised;
  float sum;
};

// Rows of integers in the place of Bf16's or F32's.
struct Int8Rows {
  using act = std::uint8_t;
};

// What a unit gives to the sums of M rows: `codes(j)` are the lanes of two registers.
template <int UNIT, int LARGEST, int M, int LDX, class Lanes>
FL_INLINE void dot_unit(const std::uint8_t* x, const Lanes& lanes, Dots<LARGEST, UNIT / 4> (&dots)[M][2]) {
  lanes([&](int j, int v, WordLanes codes) FL_LAMBDA {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      std::uint32_t inputs;
      std::memcpy(&inputs, x + m * LDX + 4 * j, 4);
      dots[m][v].add(j, codes, inputs);
    }
  });
}

// Adds to the sums of registers 2 part and 2 part + 1.
template <int UNIT, int LARGEST, bool MINIMA, int M, int LDX>
FL_INLINE void weigh_unit(const std::uint8_t* x, const Dots<LARGEST, UNIT / 4> (&dots)[M][2], const FloatLanes (&scales)[2],
                          const FloatLanes (&least)[2], int part, f32x16 (*sums)[2]) {
  using Unit = Int8Unit<UNIT>;
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    std::int32_t raised;
    float scale, sum;
    std::memcpy(&raised, x + m * LDX + offsetof(Unit, raised), 4);
    std::memcpy(&scale, x + m * LDX + offsetof(Unit, scale), 4);
    std::memcpy(&sum, x + m * LDX + offsetof(Unit, sum), 4);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      FloatLanes& to = register_of(sums[m], 2 * part + v);
      to = to + scales[v] * (scale * __builtin_convertvector(dots[m][v].sums + raised, FloatLanes));
      if constexpr (MINIMA) to = to + least[v] * sum;
    }
  }
}


// A panel's unit in scratch.
template <int UNIT, bool MINIMA>
struct UnpackedUnit {
  std::uint32_t codes[kParts8][UNIT / 4][2][kRegisterLanes];
  float scales[32];
  float least[MINIMA ? 32 : 0];
};

template <int UNIT, int LARGEST, bool MINIMA, int M, class SEGMENTS, int LDX>
FL_KERNEL void unpacked_rows(const std::uint8_t* x, const UnpackedUnit<UNIT, MINIMA>* units, Ahead ahead, Sums& sums) {
  f32x16 acc[M][2] = {};
  Tree<M, SEGMENTS> tree;
  for (int i = 0, u = 0; i < SEGMENTS::kCount; ++i) {
    for (const int end = SEGMENTS::kPlan.end[i]; u < end; ++u) {
      const auto& unit = units[u];
      const std::uint8_t* row = x + u * sizeof(Int8Unit<UNIT>);
      for (int at = 0; at < ahead.stride; at += 64) __builtin_prefetch(ahead.from + at, 0, 2);
      ahead.from += ahead.stride;
#pragma GCC unroll 1
      for (int part = 0; part < kParts8; ++part) {
        asm("" : "+r"(row));  // there are not registers enough to keep its inputs for the next part
        Dots<LARGEST, UNIT / 4> dots[M][2];
        const auto lanes = [&](const auto& use) FL_LAMBDA {
#pragma GCC unroll 8
          for (int j = 0; j < UNIT / 4; ++j)
#pragma GCC unroll 2
            for (int v = 0; v < 2; ++v) use(j, v, lanes_from<WordLanes>(unit.codes[part][j][v]));
        };
        dot_unit<UNIT, LARGEST, M, LDX>(row, lanes, dots);
        FloatLanes scales[2], least[2]{};
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          scales[v] = lanes_from<FloatLanes>(unit.scales + (2 * part + v) * kRegisterLanes);
          if constexpr (MINIMA) least[v] = lanes_from<FloatLanes>(unit.least + (2 * part + v) * kRegisterLanes);
        }
        weigh_unit<UNIT, LARGEST, MINIMA, M, LDX>(row, dots, scales, least, part, acc);
      }
    }
    tree.close(i, acc);
  }
  leave(acc, sums);
}

// A few rows times a packed panel.
template <class Codes, int UNIT, int M, class SEGMENTS, int LDX>
FL_KERNEL void packed_rows(const std::uint8_t* x, const std::uint8_t* panel, Sums& sums) {
  constexpr int units = Codes::kBlock / UNIT;
  constexpr bool in_blocks = SEGMENTS::in_blocks(units);
  f32x16 acc[M][2] = {};
  Tree<M, SEGMENTS> tree;
  int u = 0, segment = 0;
  const auto one = [&]<int FROM>() FL_LAMBDA {
    const int first = u * UNIT;
    const std::uint8_t* row = x + u * sizeof(Int8Unit<UNIT>);
#pragma GCC unroll 4
    for (int part = 0; part < kParts8; ++part) {
      Dots<Codes::kLargest, UNIT / 4> dots[M][2];
      const auto lanes = [&](const auto& use) FL_LAMBDA {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const auto give = [&](int j, WordLanes codes) FL_LAMBDA { use(j, v, codes); };
          Codes::template lanes<UNIT, FROM>(panel, first, 2 * part + v, give);
        }
      };
      dot_unit<UNIT, Codes::kLargest, M, LDX>(row, lanes, dots);
      FloatLanes scales[2], least[2]{};
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        scales[v] = Codes::number(panel, first, 0, 2 * part + v);
        if constexpr (Codes::kMinima) least[v] = Codes::number(panel, first, 1, 2 * part + v);
      }
      weigh_unit<UNIT, Codes::kLargest, Codes::kMinima, M, LDX>(row, dots, scales, least, part, acc);
    }
    ++u;
    if constexpr (!in_blocks)
      if (u == SEGMENTS::kPlan.end[segment]) tree.close(segment++, acc);
  };
  const auto block = [&]() FL_LAMBDA {
    constexpr int bytes = Codes::kBytes / (Codes::kInputs / Codes::kBlock);  // about, of levels
    const std::uint8_t* here = panel + std::size_t(u * UNIT / Codes::kBlock) * bytes;
    for (int at = 0; at < bytes; at += 64) __builtin_prefetch(here + kAheadBytes + at, 0, 2);
    one.template operator()<0>();
    if constexpr (units == 2) one.template operator()<16>();
  };
  if constexpr (in_blocks) {
    for (; segment < SEGMENTS::kCount; ++segment) {
      for (const int end = SEGMENTS::kPlan.end[segment]; u < end;) block();
      tree.close(segment, acc);
    }
  } else {
    while (u < SEGMENTS::kWords) block();
  }
  leave(acc, sums);
}

template <class Codes, int UNIT, class SEGMENTS, int LDX, int M>
FL_INLINE void packed_any(int rows, const std::uint8_t* x, const std::uint8_t* panel, Sums& sums) {
  if constexpr (M >= 1) {
    if (rows == M) return packed_rows<Codes, UNIT, M, SEGMENTS, LDX>(x, panel, sums);
    packed_any<Codes, UNIT, SEGMENTS, LDX, M - 1>(rows, x, panel, sums);
  }
}

template <int UNIT, int LARGEST, bool MINIMA, class SEGMENTS, int LDX, int M>
FL_INLINE void unpacked_any(int rows, const std::uint8_t* x, const UnpackedUnit<UNIT, MINIMA>* units, Ahead ahead,
                            Sums& sums) {
  if constexpr (M >= kInt8TileRows / 2) {
    if (rows == M) return unpacked_rows<UNIT, LARGEST, MINIMA, M, SEGMENTS, LDX>(x, units, ahead, sums);
    unpacked_any<UNIT, LARGEST, MINIMA, SEGMENTS, LDX, M - 1>(rows, x, units, ahead, sums);
  }
}

// Quantised weights in the place of CodedPanels. SCALED: inputs of a row that share a scale; SEGMENTS: in units, of
// the inputs that share one in weights, too.
template <class Codes, int K, int SCALED, class SEGMENTS = Segments<K / min(Codes::kGroup, SCALED)>>
struct Int8Panels {
  using type = Int8Rows;
  static constexpr int kUnit = min(Codes::kGroup, SCALED), kUnits = K / kUnit;
  static constexpr int kPanelBytes = K / Codes::kInputs * Codes::kBytes;
  static constexpr int kMostPacked = Codes::kSlow ? kInt8PackedRows : 2 * kInt8PackedRows;  // rows
  using Unpacked = UnpackedUnit<kUnit, Codes::kMinima>;
  static constexpr std::size_t kScratchBytes = sizeof(Unpacked) * kUnits;

  const CodedWeight& weight;

  FL_INLINE const std::uint8_t* panel(int p) const { return weight.bytes + weight.offsets[p]; }

  template <int LDX, class Store>
  FL_INLINE void multiply(int p0, int p1, int rows, const std::uint8_t* x, void* scratch, const Store& store) const {
    for (int p = p0; p < p1; ++p) {
      if (rows <= kMostPacked)
        multiply_packed<LDX>(p, rows, x, store);
      else
        multiply_tiles<LDX>(p, rows, x, static_cast<Unpacked*>(scratch), store);
    }
  }

  // SLOTS of each row of x, one behind the other, as rows of integers LDO bytes apart; shared out among all threads.
  template <int SLOTS, int LDX, int LDO>
  static FL_KERNEL void round_rows(const Context& c, int thread, int rows, const Bf16::act* x, std::uint8_t* out) {
    constexpr int groups = K / SCALED, units = SCALED / kUnit;
    c.split_up(thread, rows * SLOTS * groups, [&](int item) {
      const int slot = item / groups, group = item % groups;
      const Bf16::act* from = x + std::size_t(slot / SLOTS) * LDX + slot % SLOTS * K + group * SCALED;
      round_group(from, group, out + std::size_t(slot) * LDO + std::size_t(group * units) * sizeof(Int8Unit<kUnit>));
    });
  }

 private:
  template <int LDX, class Store>
  FL_INLINE void multiply_packed(int p, int rows, const std::uint8_t* x, const Store& store) const {
    const int tiles = (rows + kInt8PackedRows - 1) / kInt8PackedRows;
    for (int i = 0; i < tiles; ++i) {
      Sums sums;
      const Range r = split(rows, i, tiles);
      const std::uint8_t* from = x + std::size_t(r.begin) * LDX;
      packed_any<Codes, kUnit, SEGMENTS, LDX, kInt8PackedRows>(r.end - r.begin, from, panel(p), sums);
      store_rows(sums, r, p, store);
    }
  }

  template <int LDX, class Store>
  FL_INLINE void multiply_tiles(int p, int rows, const std::uint8_t* x, Unpacked* units, const Store& store) const {
    unpack(panel(p), units);
    const int tiles = (rows + kInt8TileRows - 1) / kInt8TileRows;
    const auto* next = reinterpret_cast<const char*>(panel(p + 1));
    for (int i = 0; i < tiles; ++i) {
      Sums sums;
      const Range r = split(rows, i, tiles);
      const Ahead ahead = Ahead::share(next, next + kPanelBytes, i, tiles, kUnits);
      unpacked_any<kUnit, Codes::kLargest, Codes::kMinima, SEGMENTS, LDX, kInt8TileRows>(
          r.end - r.begin, x + std::size_t(r.begin) * LDX, units, ahead, sums);
      store_rows(sums, r, p, store);
    }
  }

  static FL_KERNEL void unpack(const std::uint8_t* panel, Unpacked* units) {
    for (int first = 0; first < K; first += Codes::kBlock) {
      unpack_unit<0>(panel, first, units[first / kUnit]);
      if constexpr (kUnit < Codes::kBlock) unpack_unit<16>(panel, first + 16, units[first / kUnit + 1]);
    }
  }

  template <int FROM>
  static FL_INLINE void unpack_unit(const std::uint8_t* panel, int first, Unpacked& unit) {
#pragma GCC unroll 8
    for (int v = 0; v < kRowRegisters8; ++v) {
      Codes::template lanes<kUnit, FROM>(panel, first, v, [&](int j, WordLanes codes) FL_LAMBDA {
        std::memcpy(unit.codes[v / 2][j][v % 2], &codes, sizeof codes);
      });
      const FloatLanes scales = Codes::number(panel, first, 0, v);
      std::memcpy(unit.scales + v * kRegisterLanes, &scales, sizeof scales);
      if constexpr (Codes::kMinima) {
        const FloatLanes least = Codes::number(panel, first, 1, v);
        std::memcpy(unit.least + v * kRegisterLanes, &least, sizeof least);
      }
    }
  }

  // SCALED inputs of a row to its units. A group with a number that is none has no scale that is one.
  static FL_INLINE void round_group(const Bf16::act* x, int group, std::uint8_t* out) {
    constexpr int vectors = SCALED / 16;
    f32x16 numbers[vectors], most{}, none{};
#pragma GCC unroll 2
    for (int i = 0; i < vectors; ++i) {
      numbers[i] = Bf16::load_act(x + 16 * i);
      most = max(most, as_f32(as_u32(numbers[i]) & 0x7FFFFFFFu));
      none = none + numbers[i] * 0.0f;
    }
    const float largest = hmax(most);
    const bool counts = !(largest < kLeastCounted);
    const float scale = (counts ? largest / 127.0f : 0.0f) + sum(none), inverse = counts ? 127.0f / largest : 0.0f;
    alignas(64) std::int8_t codes[32];
    float sums[2]{};
#pragma GCC unroll 2
    for (int i = 0; i < vectors; ++i) {
      const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: rounds to nearest even in the addition
      const f32x16 raised = numbers[i] * inverse + magic;
      store_low_bytes(codes + 16 * i, as_u32(raised));
      sums[i] = scale == scale ? sum(raised - magic) : 0.0f;
    }
    if constexpr (kUnit == 32) {
      write_unit<0>(codes, scale, sums[0] + sums[1], out);
    } else {
      const bool second = SCALED == 16 && group % 2;  // of a block
      if (second) return write_unit<16>(codes - 16, scale, sums[0], out);
      write_unit<0>(codes, scale, sums[0], out);
      if constexpr (SCALED == 32) write_unit<16>(codes, scale, sums[1], out + sizeof(Int8Unit<kUnit>));
    }
  }

  // Of a block's codes those of the unit FROM which on.
  template <int FROM>
  static FL_INLINE void write_unit(const std::int8_t* codes, float scale, float sum, std::uint8_t* out) {
    Int8Unit<kUnit> unit;
#pragma GCC unroll 32
    for (int at = 0; at < kUnit; ++at) unit.codes[at] = codes[Codes::input_of(FROM + at)];
    unit.scale = scale;
    unit.raised = -Codes::kRaised * std::int32_t(sum);
    unit.sum = scale * sum;
    std::memcpy(out, &unit, sizeof unit);
  }
};

}  // namespace firelane
