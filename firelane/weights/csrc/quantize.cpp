// Integer codes of groups of weights: see weights/quantizing/integers.py, whose bits these are.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kLanes = 16;
constexpr float kLeast = 0x1p-100f;  // of a scale: numbers of smaller groups are zeros

float round_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Infinite or NaN where a number is: those have the largest bits of all.
float largest(const float* values, size_t size) {
  uint32_t most = 0;
  for (size_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, 4);
    bits &= 0x7FFFFFFF;
    most = bits > most ? bits : most;
  }
  float found;
  std::memcpy(&found, &most, 4);
  return found;
}

inline float code_of(float value, float inverse, float low, float high) {
  float code = value * inverse;
  code = code < low ? low : code;
  code = code > high ? high : code;
  return std::rint(code);
}

float squared_error(const float* values, size_t size, float scale, float inverse, float low, float high) {
  float lanes[kLanes] = {};
  size_t at = 0;
  for (; at + kLanes <= size; at += kLanes)
    for (size_t i = 0; i < kLanes; ++i) {
      const float apart = values[at + i] - code_of(values[at + i], inverse, low, high) * scale;
      lanes[i] += apart * apart;
    }
  for (size_t i = 0; at + i < size; ++i) {
    const float apart = values[at + i] - code_of(values[at + i], inverse, low, high) * scale;
    lanes[i] += apart * apart;
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

}  // namespace

EXPORT size_t firelane_quantize_integers(
    const float* values, size_t groups, size_t size, int32_t bits, const float* ratios, size_t num_ratios,
    int8_t* codes, float* scales) {
  const float high = static_cast<float>((1 << (bits - 1)) - 1), low = -high - 1;
  for (size_t g = 0; g < groups; ++g, values += size, codes += size) {
    const float most = largest(values, size);
    if (!(most <= std::numeric_limits<float>::max())) return g;
    const float base = most / high;
    float best = std::numeric_limits<float>::infinity(), scale = 0, inverse = 0;
    for (size_t r = 0; r < num_ratios; ++r) {
      const float rounded = round_to_bf16(base * ratios[r]), tried = rounded < kLeast ? 0.0f : rounded;
      const float one = tried > 0 ? 1.0f / tried : 0.0f;
      if (num_ratios > 1) {
        const float error = squared_error(values, size, tried, one, low, high);
        if (!(error < best)) continue;
        best = error;
      }
      scale = tried;
      inverse = one;
    }
    for (size_t i = 0; i < size; ++i) codes[i] = static_cast<int8_t>(code_of(values[i], inverse, low, high));
    scales[g] = scale;
  }
  return groups;
}
