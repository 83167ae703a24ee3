// Codes of quantised weights as the factors of integer products.
#pragma once

#include "panels/coded.h"
#include "panels/int8_lanes.h"

namespace firelane {

// Codes of a grouped format as lanes of four.
template <int BITS, int GROUP, bool MINIMA, Heads HEADS, Book BOOK>
struct IntegerCodes : GroupedSpan<BITS, GROUP, MINIMA, HEADS, BOOK> {
  using Span = GroupedSpan<BITS, GROUP, MINIMA, HEADS, BOOK>;
  static_assert(BOOK != Book::kE4m3, "no whole numbers");

  static constexpr int kGroup = GROUP;
  static constexpr bool kMinima = MINIMA;
  static constexpr bool kPowers = HEADS == Heads::kPower;
  static constexpr bool kWide = BITS == 8 || BOOK == Book::kIq4;  // numbers that take all eight bits
  // What lanes are above the numbers.
  static constexpr int kRaised = kWide                 ? kWideRaised
                                 : BOOK == Book::kE2m1 ? 12
                                                       : Span::kOffset;
  // What no lane is above.
  static constexpr int kLargest = kWide ? kWideCodes : BOOK == Book::kE2m1 ? 24 : (1 << BITS) - 1;
  static constexpr bool kSlow = BITS != 4;  // to unpack
  static constexpr int kBlock = min(Span::kInputs, 32);  // inputs that are unpacked together

  // The input of place `at` of a block.
  static constexpr int input_of(int at) {
    constexpr int of4[16] = {0, 8, 2, 10, 1, 9, 3, 11, 4, 12, 6, 14, 5, 13, 7, 15};
    constexpr int of_powers[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    constexpr int of6[32] = {0,  1,  2,  3,  4,  5,  6,  7,  10, 11, 12, 13, 8,  9,  14, 15,
                             16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    if (kPowers) return at / 8 * 8 + of_powers[at % 8];
    return BITS == 4 ? at / 16 * 16 + of4[at % 16] : BITS == 6 ? of6[at % 32] : at;
  }

  // Of the unit of inputs first .. first + UNIT - 1, FROM (0 or 16) within its block: for each of its lanes use(j, codes).
  template <int UNIT, int FROM, class Use>
  static FL_INLINE void lanes(const std::uint8_t* panel, int first, int v, const Use& use) {
    const std::uint8_t* codes = panel + std::size_t(first / Span::kInputs) * Span::kBytes + Span::kCodesAt;
    const int at = first % Span::kInputs;
    if constexpr (BITS == 6) {
      lanes6<FROM, UNIT>(codes + at / 32 * 768 + v * kRegisterLanes * 8, use);
    } else {
      codes += at * 4 * BITS;
#pragma GCC unroll 2
      for (int run = 0; run < UNIT; run += 16) {
        const auto give = [&](int j, WordLanes lanes) FL_LAMBDA { use(run / 4 + j, lanes); };
        if constexpr (BITS == 8)
          lanes8(codes + run * 32, v, give);
        else if constexpr (kPowers)
          lanes_of_powers(codes + run * 16 + v * kRegisterLanes * 4, give);
        else
          lanes4(codes + run * 16 + v * kRegisterLanes * 8, give);
      }
    }
  }

  // The scales, or negated minima, of the outputs of register v for the group that begins at input `first`.
  static FL_INLINE FloatLanes number(const std::uint8_t* panel, int first, int which, int v) {
    constexpr Heads stored = Span::kLevels ? Heads::kF16 : HEADS;
    const std::uint8_t* span = panel + std::size_t(first / Span::kInputs) * Span::kBytes;
    FloatLanes found = head_lanes<stored>(span + which * Span::kNumberBytes, v);
    if constexpr (Span::kLevels) {
      const int group = first % Span::kInputs / GROUP;
      const std::uint8_t* steps = span + Span::kStepsAt + 32 * (which * Span::kGroups + group) + kRegisterLanes * v;
      found = found * __builtin_convertvector(bytes_at(steps), FloatLanes);
    }
    return found;
  }

 private:
  static FL_INLINE WordLanes meant(WordLanes nibbles) {
    if constexpr (BOOK == Book::kInt) return nibbles;
    return raised_book<BOOK, kRaised>(nibbles);
  }

  template <class Use>
  static FL_INLINE void lanes4(const std::uint8_t* codes, const Use& use) {
    const WordLanes a = lanes_at<WordLanes>(codes), b = lanes_at<WordLanes>(codes + 4 * kRegisterLanes);
    const WordLanes even = every_second<0>(a, b), odd = every_second<1>(a, b);
    use(0, meant(even & 0x0F0F0F0Fu));
    use(1, meant(odd & 0x0F0F0F0Fu));
    use(2, meant(even >> 4 & 0x0F0F0F0Fu));
    use(3, meant(odd >> 4 & 0x0F0F0F0Fu));
  }

  template <class Use>
  static FL_INLINE void lanes_of_powers(const std::uint8_t* codes, const Use& use) {
#pragma GCC unroll 2
    for (int run = 0; run < 2; ++run) {
      const WordLanes lanes = lanes_at<WordLanes>(codes + 128 * run);
      use(2 * run, meant(lanes & 0x0F0F0F0Fu));
      use(2 * run + 1, meant(lanes >> 4 & 0x0F0F0F0Fu));
    }
  }

  template <class Use>
  static FL_INLINE void lanes8(const std::uint8_t* codes, int v, const Use& use) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) use(j, raised8(joined_pairs(codes + 128 * j, codes + 128 * j + 64, v)));
  }

  template <int FROM, int UNIT, class Use>
  static FL_INLINE void lanes6(const std::uint8_t* codes, const Use& use) {
    WordLanes low[3], high[3];
#pragma GCC unroll 3
    for (int q = 0; q < 3; ++q) {
      const WordLanes a = lanes_at<WordLanes>(codes + 256 * q);
      const WordLanes b = lanes_at<WordLanes>(codes + 256 * q + 4 * kRegisterLanes);
      low[q] = every_second<0>(a, b);
      high[q] = every_second<1>(a, b);
    }
    const auto middle = [&](int q) FL_LAMBDA { return joined_words(low[q], high[q]); };
    if constexpr (FROM == 0) {
      use(0, spread6(low[0]));
      use(1, spread6(middle(0)));
      use(2, spread6(low[1]));
      use(3, spread6((high[0] >> 16 & 0xFFFu) | middle(1) << 12));
    }
    if constexpr (FROM + UNIT == 32) {
      constexpr int j = UNIT / 4 - 4;
      const WordLanes last = high[0] >> 28 << 12 | high[1] >> 28 << 18;
      const WordLanes upper = (high[2] >> 28 & 3u) << 16 | high[2] >> 30 << 22;
      use(j, spread6(high[1] >> 4));
      use(j + 1, spread6(low[2]));
      use(j + 2, spread6(middle(2)));
      use(j + 3, spread6((high[2] >> 16 & 0xFFFu) | last | upper));
    }
  }
};

}  // namespace firelane
