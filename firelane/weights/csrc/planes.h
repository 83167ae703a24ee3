// The planes of bf16: byte planes that the at-rest form stores apart. A weight is sign(1) exponent(8) mantissa(7);
// turned left by one bit it is a byte of exponent above a byte (mantissa << 1 | sign). Plain loops: compilers turn
// them into vector code for the target. No pointer is read or written outside its n elements.
#pragma once
#include <cstddef>
#include <cstdint>

namespace firelane {

inline void split_planes(const uint16_t* __restrict bits, uint8_t* __restrict sign_mantissa,
                         uint8_t* __restrict exponent, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t turned = static_cast<uint16_t>(bits[i] << 1 | bits[i] >> 15);
    sign_mantissa[i] = static_cast<uint8_t>(turned);
    exponent[i] = static_cast<uint8_t>(turned >> 8);
  }
}

inline void merge_planes(const uint8_t* __restrict sign_mantissa, const uint8_t* __restrict exponent,
                         uint16_t* __restrict bits, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t turned = static_cast<uint16_t>(sign_mantissa[i] | exponent[i] << 8);
    bits[i] = static_cast<uint16_t>(turned >> 1 | turned << 15);
  }
}

// Adds to counts[256]. Four tables, since equal neighbours would wait for each other's store.
inline void count_exponents(const uint16_t* bits, size_t n, int64_t* counts) {
  uint32_t table[4][256] = {};
  for (size_t i = 0; i < n; ++i) {
    ++table[i & 3][bits[i] >> 7 & 255];
    if ((i & 0x3fffffff) == 0x3fffffff || i + 1 == n) {  // before a uint32_t can overflow
      for (auto& part : table) {
        for (int e = 0; e < 256; ++e) {
          counts[e] += part[e];
          part[e] = 0;
        }
      }
    }
  }
}

}  // namespace firelane
