// Quantised weights, decoded to bf16 on their way into the matrix product: bf16(scale * code - minimum), with a scale
// for each group of inputs of an output. firelane/weights/grouped.py describes the bytes. Decoding gives the very words
// of the panel of the dequantised weights, step by step, but for signs of zeros: products have the same bits.
#pragma once

#include "coded.h"

namespace firelane {

// What scales and minima are stored as: of levels, a unit for kLevelsBlock inputs, and a byte for each group.
enum class Heads { kF32, kF16, kBf16, kLevels };
constexpr int kLevelsBlock = 256;

// Where things lie in a span of inputs that are packed together.
template <int BITS, int GROUP, bool MINIMA, Heads HEADS>
struct GroupedSpan {
  static constexpr bool kLevels = HEADS == Heads::kLevels;
  static constexpr int kInputs = kLevels ? kLevelsBlock : BITS == 6 ? 32 : GROUP;
  static constexpr int kGroups = kInputs / GROUP;
  static constexpr int kNumberBytes = 32 * (HEADS == Heads::kF32 ? 4 : 2);  // a scale, or a unit, of each output
  static constexpr int kStepsAt = kNumberBytes * (1 + MINIMA);             // the bytes of levels
  static constexpr int kCodesAt = kStepsAt + (kLevels ? 32 * kGroups * (1 + MINIMA) : 0);
  static constexpr int kBytes = kCodesAt + kInputs * 32 * BITS / 8;
  // Steps whose codes share words.
  static constexpr int kRun = BITS == 4 ? 8 : BITS == 6 ? 16 : 1;
  // What is added to codes.
  static constexpr int kOffset = BITS == 6 ? 32 : BITS == 4 && !MINIMA ? 8 : 0;
};

// The nibble of a word that has the code of step s of eight: those of neighbours come from one shift.
constexpr int nibble_of_step(int s) { return s / 2 + s % 2 * 4; }

}  // namespace firelane

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)
#include "grouped_avx512.h"
#else
#include "grouped_floats.h"
#include "float_panels.h"
#endif
