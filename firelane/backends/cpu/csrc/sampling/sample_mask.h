// Which tokens a slot allows: bit t % 32 of word t / 32. Bits past the vocabulary mean nothing.
#pragma once

#include <bit>
#include <cstdint>

#include "sampling/sample_blocks.h"

namespace firelane {

template <int VOCAB>
FL_INLINE std::uint32_t allowed_word(const std::uint32_t* mask, int word) {
  const std::uint32_t bits = mask[word];
  return VOCAB % 32 && word == VOCAB / 32 ? bits & ((1u << VOCAB % 32) - 1) : bits;
}

constexpr int words_of(int vocab) { return (vocab + 31) / 32; }

FL_INLINE bool is_allowed(const std::uint32_t* mask, std::int32_t token) { return mask[token / 32] >> token % 32 & 1; }

// The lowest token that is allowed; 0 where none is.
template <int VOCAB>
std::int32_t first_allowed(const std::uint32_t* mask) {
  for (int w = 0; w < words_of(VOCAB); ++w)
    if (const std::uint32_t bits = allowed_word<VOCAB>(mask, w)) return 32 * w + std::countr_zero(bits);
  return 0;
}

// How many tokens are allowed, counted no further than `enough`.
template <int VOCAB>
int count_allowed(const std::uint32_t* mask, int enough) {
  int count = 0;
  for (int w = 0; w < words_of(VOCAB) && count < enough; ++w) count += std::popcount(allowed_word<VOCAB>(mask, w));
  return count;
}

// out[i] = x[i] where token i is allowed, else -inf; out has room for whole blocks.
template <int VOCAB>
void copy_allowed(const float* x, const std::uint32_t* mask, float* out) {
  LaneBits lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = std::uint32_t(i);
  for (int b = 0; b < blocks_of(VOCAB); ++b) {
    const std::uint32_t words[2] = {mask[2 * b], 2 * b + 1 < words_of(VOCAB) ? mask[2 * b + 1] : 0};
    Block block;
    if (words[0] | words[1]) block = load_block<VOCAB>(x, b);
    for (int j = 0; j < kVectors; ++j) {
      const LaneBits shifted = (LaneBits{} + (words[j * kLanes / 32] >> j * kLanes % 32)) >> lane;
      block.v[j] = (shifted & 1) != 0 ? block.v[j] : Lanes{} + kNegInf;
    }
    std::memcpy(out + std::size_t(b) * kBlock, &block, sizeof block);
  }
}

}  // namespace firelane
