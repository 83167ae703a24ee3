// Registers of outputs with the codes of four inputs in each lane, and their dot products with bytes of a row (int8.h).
#pragma once

#include "grouped.h"

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)
#include "int8_avx512.h"
#else
#include "int8_split.h"
#endif

namespace firelane {

constexpr int kRowRegisters8 = 32 / kRegisterLanes;
constexpr int kParts8 = kRowRegisters8 / 2;  // of two registers each

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
