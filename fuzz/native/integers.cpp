// Numbers of a checkpoint, made integer codes: all codes fit their bits, all scales are finite, and a group that holds
// no number is told by its place.
#include "quantize.cpp"

#include "cases.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case one(data, size);
  const std::int32_t bits = one.byte() % 2 ? 4 : 8;
  const std::size_t length = one.between(1, 70), ratios = 1 + one.byte() % 5;
  Room<float> tried(ratios);
  for (std::size_t i = 0; i < ratios; ++i) tried[i] = 1.0f - 0.05f * float(i);
  const std::size_t groups = one.left() / (4 * length) + 1;
  Room<float> values(groups * length), scales(groups);
  Room<std::int8_t> codes(groups * length);
  one.fill(values.data(), values.bytes());
  const std::size_t done =
      firelane_quantize_integers(values.data(), groups, length, bits, tried.data(), ratios, codes.data(), scales.data());
  for (std::size_t i = 0; i < done * length; ++i) {
    PROMISE(std::isfinite(values[i]));
    PROMISE(codes[i] >= -(1 << (bits - 1)) && codes[i] < 1 << (bits - 1));
    PROMISE(std::isfinite(scales[i / length]) && scales[i / length] >= 0);
  }
  bool is_finite = true;
  for (std::size_t i = 0; done < groups && i < length; ++i)
    is_finite = is_finite && std::isfinite(values[done * length + i]);
  PROMISE(done == groups || !is_finite);
  return 0;
}
