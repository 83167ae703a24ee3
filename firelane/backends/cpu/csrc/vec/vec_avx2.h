// Sixteen-lane vectors in two 256-bit registers, with fused multiply-add (FIRELANE_ISA_AVX2).
#pragma once

#include <immintrin.h>

namespace firelane {

constexpr int kRegisterBytes = 32;

// Twelve accumulators of sixteen registers: six rows by one vector. Two rows take both of a panel's.
constexpr int kTileRows = 6;
constexpr int kWideRows = 2;
constexpr int kFetchRows = 1, kDecodeFetchRows = 1;

FL_INLINE __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }

}  // namespace firelane

#include "vec/vec_split.h"
