// Quantised weights, decoded to bf16 on their way into the matrix product: bf16(scale * code - minimum), with a scale
// for each group of inputs of an output. firelane/weights/grouped.py describes the bytes. Decoding gives the very words
// of the panel of the dequantised weights, step by step, so that products have the same bits.
#pragma once

#include "coded.h"

namespace firelane {

// Lane i of four vectors: output 8 v + i / 2, input i % 2 of a step.
struct StepLanes {
  f32x16 v[4];
};

#if defined(FIRELANE_ISA_AVX512BF16) || defined(FIRELANE_ISA_AVX512)

// Numbers of 32 outputs, each for both inputs of a step.
FL_INLINE StepLanes twice(const float* p) {
  StepLanes out;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const f32x16 rows = load(p + 16 * half);
    out.v[2 * half] = __builtin_shufflevector(rows, rows, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    out.v[2 * half + 1] = __builtin_shufflevector(rows, rows, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
  }
  return out;
}

// StepLanes 2 i and 2 i + 1 of `a`, then of `b`, rounded to bf16, as word i.
FL_INLINE u32x16 pairs_bf16(f32x16 a, f32x16 b) {
#if defined(FIRELANE_ISA_AVX512BF16)
  return (u32x16)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
#else
  const u32x16 x = round_bf16_bits(a), y = round_bf16_bits(b);
  const u32x16 even = __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const u32x16 odd = __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return even | odd << 16;
#endif
}

// Numbers of four bits: the lowest of each lane, as the table has them.
FL_INLINE f32x16 lowest4(u32x16 lanes, f32x16 table) {
  return (f32x16)_mm512_permutexvar_ps((__m512i)lanes, (__m512)table);
}

FL_INLINE f32x16 bytes16(const std::uint8_t* p) {
  return (f32x16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

template <int BITS, int GROUP, bool MINIMA>
struct Grouped {
  static constexpr int kSteps = GROUP / 2;
  static constexpr int kHeadBytes = MINIMA ? 256 : 128;
  static constexpr int kBlockBytes = kHeadBytes + GROUP * 32 * BITS / 8;

  const std::uint8_t* block;

  FL_INLINE Grouped(const std::uint8_t* panel, int) : block(panel) {}

  // use(step, words) for the next kSteps steps.
  template <class Use>
  FL_INLINE void decode(const Use& use) {
    const auto* heads = reinterpret_cast<const float*>(block);
    const StepLanes scales = twice(heads), least = MINIMA ? twice(heads + 32) : StepLanes{};
    const auto weigh = [&](f32x16 code, int v) FL_LAMBDA {
      return MINIMA ? fmadd(code, scales.v[v], least.v[v]) : code * scales.v[v];
    };
    const std::uint8_t* codes = block + kHeadBytes;
    if constexpr (BITS == 4) {
      const float first = MINIMA ? 0 : -8;
      const f32x16 table = __builtin_convertvector(lane_index(), f32x16) + first;
#pragma GCC unroll 2
      for (int at = 0; at < kSteps; at += 8, codes += 256) {
        u32x16 lanes[4];
        std::memcpy(lanes, codes, 256);
#pragma GCC unroll 8
        for (int s = 0; s < 8; ++s) {
          f32x16 w[4];
#pragma GCC unroll 4
          for (int v = 0; v < 4; ++v) w[v] = weigh(lowest4(lanes[v] >> (4 * s), table), v);
          const u32x16 words[2] = {pairs_bf16(w[0], w[1]), pairs_bf16(w[2], w[3])};
          use(at + s, words);
        }
      }
    } else {
#pragma GCC unroll 4
      for (int s = 0; s < kSteps; ++s) {
        f32x16 w[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) w[v] = weigh(bytes16(codes + 64 * s + 16 * v), v);
        const u32x16 words[2] = {pairs_bf16(w[0], w[1]), pairs_bf16(w[2], w[3])};
        use(s, words);
      }
    }
    block += kBlockBytes;
  }
};

#else

template <int BITS, int GROUP, bool MINIMA>
struct Grouped {
  static constexpr int kSteps = GROUP / 2;
  static constexpr int kHeadBytes = MINIMA ? 256 : 128;
  static constexpr int kBlockBytes = kHeadBytes + GROUP * 32 * BITS / 8;

  const std::uint8_t* block;

  FL_INLINE Grouped(const std::uint8_t* panel, int) : block(panel) {}

  static FL_INLINE std::uint32_t rounded(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  }

  template <class Use>
  FL_INLINE void decode(const Use& use) {
    alignas(64) float heads[2][32] = {};
    std::memcpy(heads, block, kHeadBytes);
    const std::uint8_t* codes = block + kHeadBytes;
    for (int s = 0; s < kSteps; ++s) {
      alignas(64) float numbers[64];
      if constexpr (BITS == 4) {
        std::uint32_t lanes[64];
        std::memcpy(lanes, codes + s / 8 * 256, 256);
        for (int i = 0; i < 64; ++i) numbers[i] = float(int(lanes[i] >> (4 * (s % 8)) & 15) - (MINIMA ? 0 : 8));
      } else {
        std::int8_t lanes[64];
        std::memcpy(lanes, codes + 64 * s, 64);
        for (int i = 0; i < 64; ++i) numbers[i] = float(lanes[i]);
      }
      alignas(64) std::uint32_t out[32];
      for (int row = 0; row < 32; ++row) {
        const float scale = heads[0][row], least = heads[1][row];
        const auto weigh = [&](float code) FL_LAMBDA { return MINIMA ? code * scale + least : code * scale; };
        out[row] = rounded(weigh(numbers[2 * row])) | rounded(weigh(numbers[2 * row + 1])) << 16;
      }
      const u32x16 words[2] = {load(out), load(out + 16)};
      use(s, words);
    }
    block += kBlockBytes;
  }
};

#endif

}  // namespace firelane
