// Weights of a checkpoint: the byte planes of any bf16 words give the same words again, and all exponents are counted.
#include "codec.cpp"

#include "cases.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case one(data, size);
  const std::size_t n = size / 2;
  Room<std::uint16_t> bits(n), again(n);
  Room<std::uint8_t> low(n), high(n);
  Room<std::int64_t> counts(256);
  one.fill(bits.data(), bits.bytes());
  firelane_split(bits.data(), low.data(), high.data(), n);
  firelane_merge(low.data(), high.data(), again.data(), n);
  firelane_count(bits.data(), n, counts.data());
  for (std::size_t i = 0; i < n; ++i) {
    PROMISE(again[i] == bits[i]);
    PROMISE(high[i] == (bits[i] >> 7 & 0xFF));
    --counts[high[i]];
  }
  for (std::size_t i = 0; i < 256; ++i) PROMISE(counts[i] == 0);
  return 0;
}
