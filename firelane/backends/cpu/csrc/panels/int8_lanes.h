// Registers of outputs with the codes of four inputs in each lane, and their dot products with bytes of a row (int8.h).
#pragma once

#include "panels/grouped.h"

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)
#include "panels/int8_avx512.h"
#else
#include "panels/int8_split.h"
#endif

namespace firelane {

constexpr int kRowRegisters8 = 32 / kRegisterLanes;
constexpr int kParts8 = kRowRegisters8 / 2;  // of two registers each

constexpr int kWideCodes = 255;  // of eight bits

// Sums over LANES lanes of four codes, none above LARGEST, of dot products with four bytes of a row each.
template <int LARGEST, int LANES>
struct Dots {
  IntLanes sums;

  // j: 0, 1, 2 ...
  FL_INLINE void add(int j, WordLanes codes, std::uint32_t row) {
    sums = add_dots<LARGEST == kWideCodes>(j == 0 ? IntLanes{} : sums, codes, row);
  }
};

#if defined(FIRELANE_SHORT_SUMS)
// Sums of two products stay in sixteen bits as long as they fit.
template <int LARGEST, int LANES>
  requires(LARGEST < kWideCodes)
struct Dots<LARGEST, LANES> {
  static constexpr int kTogether = 32767 / (2 * 127 * LARGEST);

  IntLanes sums;
  ShortLanes products;

  FL_INLINE void add(int j, WordLanes codes, std::uint32_t row) {
    const ShortLanes more = products_of_two(codes, row);
    products = j % kTogether == 0 ? more : products + more;
    // Sums in another order would need a register for each product.
    asm("" : "+x"(products));
    if (j % kTogether == kTogether - 1 || j == LANES - 1) {
      const IntLanes found = sums_of_two(products);
      sums = j < kTogether ? found : sums + found;
    }
  }
};
#endif

template <class Register, class T>
FL_INLINE Register lanes_from(const T* p) {
  Register found;
  std::memcpy(&found, p, sizeof found);
  return found;
}

#if !defined(FIRELANE_SPREAD6)
// The lowest four times six bits of each lane as bytes.
FL_INLINE WordLanes spread6(WordLanes t) {
  const WordLanes halves = (t & 0xFFFu) | (t & 0xFFF000u) << 4;
  return (halves & 0x003F003Fu) | (halves & 0x0FC00FC0u) << 2;
}

// Bits 24 .. 55 of words of 64 bits.
FL_INLINE WordLanes joined_words(WordLanes low, WordLanes high) { return low >> 24 | high << 8; }
#endif

// Whole numbers of eight bits, as codes have them, raised.
FL_INLINE WordLanes raised8(WordLanes lanes) {
  if constexpr (kWideRaised == 0) return lanes;
  return lanes ^ 0x80808080u;
}

// The numbers of a table, raised by so much.
template <Book BOOK, int RAISED>
struct RaisedBook {
  std::uint8_t values[16];
  constexpr RaisedBook() : values{} {
    for (int i = 0; i < 16; ++i) values[i] = std::uint8_t(kBookValues<BOOK>[i] + RAISED);
  }
};

template <Book BOOK, int RAISED>
FL_INLINE WordLanes raised_book(WordLanes places) {
  static constexpr RaisedBook<BOOK, RAISED> book;
  return bytes_of_table(book.values, places);
}

}  // namespace firelane
