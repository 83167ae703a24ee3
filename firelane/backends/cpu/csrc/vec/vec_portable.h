// Sixteen-lane vectors in registers as wide as the compiler's target has them, without fused multiply-add.
#pragma once

namespace firelane {

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

// Accumulators, one vector of weights, a factor and a product have to fit sixteen registers.
constexpr int kTileRows = kRegisterBytes == 16 ? 2 : 5;
constexpr int kWideRows = kRegisterBytes == 16 ? 0 : 2;
constexpr int kFetchRows = 1, kDecodeFetchRows = 1;

template <class Register>
FL_INLINE Register multiply_add(Register a, Register b, Register c) {
  return a * b + c;
}

}  // namespace firelane

#include "vec/vec_split.h"
