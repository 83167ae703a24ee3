// Quantised weights, decoded to bf16 on their way into the matrix product: bf16(scale * code - minimum), with a scale
// for each group of inputs of an output. firelane/weights/formats/grouped.py describes the bytes. Decoding gives the very words
// of the panel of the dequantised weights, step by step, but for signs of zeros: products have the same bits.
#pragma once

#include "panels/coded.h"

namespace firelane {

// What scales and minima are stored as: of levels, a unit for kLevelsBlock inputs, and a byte for each group; of powers
// of two, how often 2^kMostPower is halved.
enum class Heads { kF32, kF16, kBf16, kLevels, kPower };
constexpr int kLevelsBlock = 256;
constexpr int kMostPower = 119;

// What codes stand for: themselves, the numbers of a table, or floats of eight bits.
enum class Book { kInt, kE2m1, kIq4, kE4m3 };

template <Book BOOK>
constexpr std::int8_t kBookValues[16] = {};
template <>
constexpr std::int8_t kBookValues<Book::kE2m1>[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
template <>
constexpr std::int8_t kBookValues<Book::kIq4>[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                     1,    13,   25,  38,  53,  69,  89,  113};
// Bits of an E4M3 number moved to those of a float give the number less so many powers of two.
constexpr float kE4m3Power = 0x1p120f;

// Where things lie in a span of inputs that are packed together.
template <int BITS, int GROUP, bool MINIMA, Heads HEADS, Book BOOK>
struct GroupedSpan {
  static constexpr bool kLevels = HEADS == Heads::kLevels;
  static constexpr int kInputs = kLevels ? kLevelsBlock : BITS == 6 ? 32 : GROUP;
  static constexpr int kGroups = kInputs / GROUP;
  static constexpr int kNumberBytes = 32 * (HEADS == Heads::kF32 ? 4 : HEADS == Heads::kPower ? 1 : 2);  // a scale, or a unit, of each output
  static constexpr int kStepsAt = kNumberBytes * (1 + MINIMA);             // the bytes of levels
  static constexpr int kCodesAt = kStepsAt + (kLevels ? 32 * kGroups * (1 + MINIMA) : 0);
  static constexpr int kBytes = kCodesAt + kInputs * 32 * BITS / 8;
  // Steps whose codes share words.
  static constexpr int kRun = BITS == 4 ? 8 : BITS == 6 ? 16 : 1;
  // What is added to codes.
  static constexpr int kOffset = BITS == 6 ? 32 : BITS == 4 && !MINIMA && BOOK == Book::kInt ? 8 : 0;
};

// The nibble of a word that has the code of step s of eight: those of neighbours come from one shift.
constexpr int nibble_of_step(int s) { return s / 2 + s % 2 * 4; }

}  // namespace firelane

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)
#include "panels/grouped_avx512.h"
#else
#include "panels/grouped_floats.h"
#include "panels/float_panels.h"
#endif
