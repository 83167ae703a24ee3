// Exchange of rows between the ranks of a model: memory that the processes of one machine share.
//
// Each rank leaves its part of a sum in a place of its own, one of two in turns; once all have, each adds up all parts
// in the order of the ranks, as a binary tree. So a sum takes one barrier, and what is read stays as it is until all
// have come to the next one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "context.h"
#include "sleep.h"

namespace firelane {

// State that the ranks have in common; zeros at first. firelane/backends/cpu/link.py
struct LinkHeader {
  alignas(64) std::atomic<std::uint32_t> arrivals;  // of all ranks at all barriers
  std::atomic<std::uint32_t> sleepers;
  alignas(64) std::atomic<std::uint32_t> steps;  // that the first rank has handed out
  std::atomic<std::uint32_t> followers;          // ranks that sleep until there is a step
  std::int32_t num_chunks, num_tokens, num_rows;  // of the last one
  alignas(64) std::atomic<std::uint32_t> ended;  // nobody waits any longer: a rank is gone, or the group ends
};
static_assert(offsetof(LinkHeader, num_chunks) == kLinkCountsAt && offsetof(LinkHeader, ended) == kLinkEndedAt);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

constexpr int kLinkSpins = 20000;   // about as long as ranks that have a core each are apart
constexpr int kStepSpins = 50000;   // some hundred microseconds: a step follows another one at once, or much later

// Waits until `word` has come to `wanted`, or the group ends.
FL_INLINE void await_count(LinkHeader& link, std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& sleepers,
                           std::uint32_t wanted, int spins) {
  const auto is_there = [&](std::uint32_t seen) {
    return std::int32_t(seen - wanted) >= 0 || link.ended.load(std::memory_order_relaxed);
  };
  for (int i = 0; i < spins; ++i) {
    if (is_there(word.load(std::memory_order_acquire))) return;
    cpu_relax();
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  for (std::uint32_t seen; !is_there(seen = word.load(std::memory_order_seq_cst));) sleep_shared(word, seen);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

inline void hand_out(LinkHeader& link) {
  link.steps.fetch_add(1, std::memory_order_seq_cst);
  if (link.followers.load(std::memory_order_seq_cst)) wake_shared(link.steps);
}

inline void end_group(LinkHeader& link) {
  link.ended.store(1, std::memory_order_seq_cst);
  wake_shared(link.steps);
  wake_shared(link.arrivals);
}

// Barrier number `index` of a step, for all threads of all ranks, between which rows were written and are read.
FL_INLINE void meet(const Context& c, int thread, int index) {
  LinkHeader& link = *static_cast<LinkHeader*>(c.link);
  const std::uint32_t wanted = c.link_begun + std::uint32_t(index + 1) * c.ranks;
  if (thread == 0 && link.arrivals.fetch_add(1, std::memory_order_seq_cst) + 1 == wanted &&
      link.sleepers.load(std::memory_order_seq_cst))
    wake_shared(link.arrivals);
  await_count(link, link.arrivals, link.sleepers, wanted, c.link_spins);
}

// LDP, LDO, LDR: elements from one row of the parts, of out and of the residual to the next.
template <int RANKS, int WIDTH, int LDP, int LDO, int LDR, bool BIAS, bool RESIDUAL, bool SCALED>
struct AllReduce {
  const float* parts;  // of the first rank
  std::size_t apart;   // elements from one rank's to the next's
  float* out;
  const float* bias;
  const float* residual;
  float scale;

  template <int N>
  FL_INLINE f32x16 sum(const float* from) const {
    if constexpr (N == 1) return load(from);
    else return sum<N / 2>(from) + sum<N - N / 2>(from + N / 2 * apart);
  }

  FL_KERNEL void run(const Context& c, int thread, int index, int rows) const {
    meet(c, thread, index);
    constexpr int vectors = (WIDTH + 15) / 16;
    const Range mine = split(rows * vectors, thread, c.threads());
    for (int item = mine.begin; item < mine.end; ++item) {
      const std::size_t row = item / vectors, column = item % vectors * 16;
      f32x16 total = sum<RANKS>(parts + row * LDP + column);
      if constexpr (BIAS) total += load(bias + column);
      if constexpr (SCALED) total = total * scale;
      if constexpr (RESIDUAL) total += load(residual + row * LDR + column);
      store(out + row * LDO + column, total);
    }
  }
};

}  // namespace firelane
