// Grouped formats without vectors of the target's own.
#pragma once

#include "grouped.h"

namespace firelane {

FL_INLINE float half_to_f32(std::uint16_t v) {
  const std::uint32_t sign = std::uint32_t(v & 0x8000) << 16, rest = v & 0x7FFF;
  float f;
  if (rest < 0x0400) {  // subnormal
    f = float(rest) * 0x1p-24f;
    return sign ? -f : f;
  }
  const std::uint32_t bits = sign | ((rest << 13) + (112u << 23));
  std::memcpy(&f, &bits, 4);
  return f;
}

FL_INLINE std::uint32_t rounded_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

template <int BITS, int GROUP, bool MINIMA, Heads HEADS>
struct Grouped : GroupedSpan<BITS, GROUP, MINIMA, HEADS> {
  using Span = GroupedSpan<BITS, GROUP, MINIMA, HEADS>;
  static constexpr int kSteps = Span::kInputs / 2;
  static constexpr int kBlockBytes = Span::kBytes;

  const std::uint8_t* block;

  FL_INLINE Grouped(const std::uint8_t* panel, int) : block(panel) {}

  // The scale of an output in a group, or its minimum, negated.
  FL_INLINE float head(int which, int group, int row) const {
    const int i = which * 32 + row;
    float f;
    std::uint16_t half;
    if constexpr (HEADS == Heads::kF32) {
      std::memcpy(&f, block + 4 * i, 4);
      return f;
    }
    std::memcpy(&half, block + 2 * i, 2);
    if constexpr (HEADS == Heads::kBf16) return bf16_to_f32(half);
    f = half_to_f32(half);
    if constexpr (Span::kLevels) f *= std::int8_t(block[Span::kStepsAt + 32 * (which * Span::kGroups + group) + row]);
    return f;
  }

  // The code of input p of step s.
  FL_INLINE int code(int s, int row, int p) const {
    const std::uint8_t* codes = block + Span::kCodesAt + s / Span::kRun * Span::kRun * 8 * BITS;
    if constexpr (BITS == 8) return std::int8_t(codes[2 * row + p]);
    if constexpr (BITS == 4) {
      std::uint32_t word;
      std::memcpy(&word, codes + 4 * (2 * row + p), 4);
      return int(word >> (4 * nibble_of_step(s % 8)) & 15) - Span::kOffset;
    }
    std::uint64_t words[3];
    for (int q = 0; q < 3; ++q) std::memcpy(words + q, codes + 256 * q + 8 * row, 8);
    const int at = s % 16;
    const int last = int(words[p] >> 60 | (words[2] >> (60 + 2 * p) & 3) << 4);
    return (at == 15 ? last : int(words[at / 5] >> (at % 5 * 12 + 6 * p) & 63)) - Span::kOffset;
  }

  // use(step, words) for the next kSteps steps.
  template <class Use>
  FL_INLINE void decode(const Use& use) {
    for (int s = 0; s < kSteps; ++s) {
      alignas(64) std::uint32_t out[32];
      for (int row = 0; row < 32; ++row) {
        const float scale = head(0, 2 * s / GROUP, row), least = MINIMA ? head(1, 2 * s / GROUP, row) : 0.0f;
        const auto weight = [&](int p) FL_LAMBDA {
          const float number = float(code(s, row, p)) * scale;
          return rounded_bf16(MINIMA ? number + least : number);
        };
        out[row] = weight(0) | weight(1) << 16;
      }
      const u32x16 words[2] = {load(out), load(out + 16)};
      use(s, words);
    }
    block += kBlockBytes;
  }
};

}  // namespace firelane
