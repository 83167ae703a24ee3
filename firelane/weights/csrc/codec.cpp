// The face of planes.h towards Python (firelane/weights/formats/native.py).
#include "planes.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void firelane_split(const uint16_t* bits, uint8_t* sign_mantissa, uint8_t* exponent, size_t n) {
  firelane::split_planes(bits, sign_mantissa, exponent, n);
}

EXPORT void firelane_merge(const uint8_t* sign_mantissa, const uint8_t* exponent, uint16_t* bits, size_t n) {
  firelane::merge_planes(sign_mantissa, exponent, bits, n);
}

EXPORT void firelane_count(const uint16_t* bits, size_t n, int64_t* counts) {
  firelane::count_exponents(bits, n, counts);
}
