// Exchange of rows between the ranks of a model: memory that the processes of one machine share.
//
// The ranks of a stage add up: each leaves its part of a sum in a place of its own, one of two in turns; once all have,
// each adds up all parts in the order of the ranks, as a binary tree. So a sum takes one barrier, and what is read stays
// as it is until all have come to the next one. A step begins with a barrier, too: where the ranks of a stage are in it,
// all of them have ended the step before.
//
// A stage hands its rows on to the next one: each rank to the rank with the same place there, in one of
// CreateArgs::depth places in turns, one more than steps that may be in flight. So the rows of a step lie where they lie
// until all ranks have ended it.
//
// Ranks of other hosts have parts and rows here, too: whoever hears of them puts them there, and arrives for them
// (hosts.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "context.h"
#include "threads/sleep.h"

namespace firelane {

// A number that processes wait on to grow; zero at first.
struct alignas(64) SharedCount {
  Atomic<std::uint32_t> value, sleepers;

  std::uint32_t add(std::uint32_t more) { return value.fetch_add(more) + more; }
  void wake() {
    if (sleepers.load()) wake_shared(value);
  }
};

// State that all ranks have in common; zeros at first. firelane/backends/cpu/link.py
struct LinkHeader {
  SharedCount steps;  // that the engine has handed out
  alignas(64) Atomic<std::uint32_t> ended;  // nobody waits any longer: a rank is gone, or the group ends
  std::int32_t stages;
  alignas(64) std::int32_t counts[kMostInFlight][4];  // by place of a step: num_chunks, num_tokens, num_rows
};

// State of a stage, behind the header and the stages before it.
struct StageHeader {
  SharedCount arrivals;             // of its ranks at all barriers
  SharedCount sent[kMostLanes];     // by rank: steps whose rows lie where the next stage reads them
  double busy_seconds[kMostLanes];  // by rank: from the beginnings of its steps to their ends
};
static_assert(offsetof(LinkHeader, counts) == kLinkCountsAt && offsetof(LinkHeader, ended) == kLinkEndedAt);
static_assert(offsetof(LinkHeader, stages) == kLinkStagesAt && sizeof(LinkHeader) <= kLinkBytes);
static_assert(offsetof(StageHeader, busy_seconds) == kStageBusyAt && sizeof(StageHeader) <= kStageBytes);

constexpr int kStepSpins = 50000;  // some hundred microseconds: a step follows another one at once, or much later

FL_INLINE StageHeader& stage_header(void* link, int stage) {
  return *reinterpret_cast<StageHeader*>(static_cast<std::uint8_t*>(link) + kLinkBytes + stage * kStageBytes);
}

// Waits until `count` has come to `wanted`, or the group ends.
FL_INLINE void await_count(LinkHeader& link, SharedCount& count, std::uint32_t wanted, int spins) {
  const auto is_there = [&](std::uint32_t seen) {
    return std::int32_t(seen - wanted) >= 0 || link.ended.load_relaxed();
  };
  for (int i = 0; i < spins; ++i) {
    if (is_there(count.value.load_acquire())) return;
    cpu_relax();
  }
  count.sleepers.fetch_add(1);
  for (std::uint32_t seen; !is_there(seen = count.value.load());)
    sleep_shared(count.value, seen);
  count.sleepers.fetch_sub(1);
}

inline void hand_out(LinkHeader& link) {
  link.steps.add(1);
  link.steps.wake();
}

inline void end_group(LinkHeader& link) {
  link.ended.store(1);
  wake_shared(link.steps.value);
  for (int i = 0; i < link.stages; ++i) {
    StageHeader& stage = stage_header(&link, i);
    wake_shared(stage.arrivals.value);
    for (auto& sent : stage.sent) wake_shared(sent.value);
  }
}

// Barrier number `index` of a step, for all threads of all ranks of a stage, between which rows were written and are
// read.
FL_INLINE void meet(const Context& c, int thread, int index) {
  LinkHeader& link = *static_cast<LinkHeader*>(c.link);
  SharedCount& arrivals = stage_header(c.link, c.stage).arrivals;
  const std::uint32_t wanted = c.link_begun + std::uint32_t(index + 1) * c.ranks;
  if (thread == 0 && arrivals.add(1 + c.peer_count) == wanted) arrivals.wake();
  await_count(link, arrivals, wanted, c.link_spins);
}

// The rows of this step of a rank of `stage` with this place there lie where the next stage reads them.
inline void rows_lie(const Context& c, int stage) {
  SharedCount& sent = stage_header(c.link, stage).sent[c.lane];
  sent.add(1);
  sent.wake();
}

// Until the stage before has sent the rows of this step.
FL_INLINE void await_rows(const Context& c) {
  SharedCount& sent = stage_header(c.link, c.stage - 1).sent[c.lane];
  await_count(*static_cast<LinkHeader*>(c.link), sent, c.number + 1, c.link_spins);
}

// Rows of ROW_BYTES each to where the next stage reads them, or from there. BEFORE: bytes a row of what lies in front.
template <int ROW_BYTES, int BEFORE>
FL_KERNEL void send(const Context& c, int thread, const std::uint8_t* from) {
  const Range mine = split(c.step.num_tokens, thread, c.threads());
  std::uint8_t* to = c.mail(c.mail_out) + std::size_t(BEFORE) * c.limits.max_num_batched_tokens;
  std::memcpy(to + std::size_t(mine.begin) * ROW_BYTES, from + std::size_t(mine.begin) * ROW_BYTES,
              std::size_t(mine.end - mine.begin) * ROW_BYTES);
}

template <int ROW_BYTES, int BEFORE>
FL_KERNEL void receive(const Context& c, int thread, std::uint8_t* to) {
  const Range mine = split(c.step.num_tokens, thread, c.threads());
  const std::uint8_t* from = c.mail(c.mail_in) + std::size_t(BEFORE) * c.limits.max_num_batched_tokens;
  std::memcpy(to + std::size_t(mine.begin) * ROW_BYTES, from + std::size_t(mine.begin) * ROW_BYTES,
              std::size_t(mine.end - mine.begin) * ROW_BYTES);
}

}  // namespace firelane
