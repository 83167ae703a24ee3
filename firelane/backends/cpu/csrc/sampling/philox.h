// Philox4x32-10, a counter-based generator: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
// 3", 2011.
#pragma once

#include <array>
#include <cstdint>

namespace firelane {

constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {std::uint32_t(b >> 32) ^ counter[1] ^ key[0], std::uint32_t(b),
               std::uint32_t(a >> 32) ^ counter[3] ^ key[1], std::uint32_t(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// The uniform number in [0, 1), of 24 bits, that draws the token of `position` under `seed`.
constexpr float uniform_at(std::uint64_t seed, std::int32_t position) {
  const auto words = philox4x32({std::uint32_t(position), 0, 0, 0}, {std::uint32_t(seed), std::uint32_t(seed >> 32)});
  return float(words[0] >> 8) * 0x1p-24f;
}

}  // namespace firelane
