// The C interface of a compiled program. The generated code defines `struct Program` with kOps, kScratchBytes,
// kScratchRowBytes (for each token row of the largest step), kMeetings (barriers of all ranks in a step) and run().
#pragma once

#include <ctime>
#include <vector>

#include "context.h"
#include "link.h"
#include "thread_pool.h"

namespace firelane {

FL_INLINE double seconds_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Of one thread.
template <class Program>
constexpr std::size_t scratch_bytes(std::size_t max_tokens) {
  return Program::kScratchBytes + (Program::kScratchRowBytes * max_tokens + 127) / 64 * 64;
}

template <class Program>
class Executor {
 public:
  explicit Executor(const CreateArgs& args)
      : slot_(args.limits.max_num_batched_tokens),
        position_(slot_.size()),
        last_(slot_.size()),
        chunk_row_(args.limits.max_num_seqs),
        counters_(std::size_t(Program::kOps) * args.limits.threads),
        pool_(args.limits.threads, &Executor::work, this) {
    static_cast<CreateArgs&>(context_) = args;
    context_.token_slot = slot_.data();
    context_.token_position = position_.data();
    context_.token_last = last_.data();
    context_.chunk_row = chunk_row_.data();
    context_.counters = counters_.data();
    context_.scratch_stride = scratch_bytes<Program>(args.limits.max_num_batched_tokens);
    context_.scratch_rows = Program::kScratchBytes;
  }

  void submit(const StepArgs& step) {
    context_.step = step;
    context_.link_begun += std::uint32_t(Program::kMeetings) * context_.ranks * (begun_ ? 1 : 0);
    begun_ = true;
    int row = 0;
    for (int i = 0; i < step.num_chunks; ++i) {
      chunk_row_[i] = row;
      for (int t = 0; t < step.chunk_len[i]; ++t, ++row) {
        slot_[row] = step.chunk_slot[i];
        position_[row] = step.chunk_start[i] + t;
        last_[row] = t + 1 == step.chunk_len[i];
      }
    }
    context_.logit_rows = step.num_rows;
    while (context_.logit_rows > 0 && step.row_kind[context_.logit_rows - 1] == kEmbed) --context_.logit_rows;
    for (auto& counter : counters_) counter.taken = 0;
    mark_ = seconds_now();
    pool_.submit();
  }

  void wait() { pool_.wait(); }

  // Runs the steps that the first rank hands out: `step` points at what they have in common. Returns once the group
  // ends.
  void follow(StepArgs step) {
    LinkHeader& link = *static_cast<LinkHeader*>(context_.link);
    for (std::uint32_t seen = 1;; ++seen) {
      await_count(link, link.steps, link.followers, seen, context_.link_spins ? kStepSpins : 0);
      if (link.ended.load()) return;
      step.num_chunks = link.num_chunks;
      step.num_tokens = link.num_tokens;
      step.num_rows = link.num_rows;
      submit(step);
      wait();
    }
  }

  // Ends an op: every thread has finished it. The last one notes the time: others may not run for a while.
  void sync(int op) {
    pool_.sync([this, op] {
      const double now = seconds_now();
      context_.op_seconds[op] += now - mark_;
      mark_ = now;
    });
  }

 private:
  static void work(void* self, int thread) {
    auto& executor = *static_cast<Executor*>(self);
    Program::run(executor, executor.context_, thread);
    if (thread == 0) executor.context_.op_seconds[Program::kOps] += 1;
  }

  Context context_{};
  std::vector<std::int32_t> slot_, position_, last_, chunk_row_;
  std::vector<Counter> counters_;
  double mark_ = 0;
  bool begun_ = false;
  ThreadPool pool_;  // the last: its threads end first, and look at nothing before the first step
};

}  // namespace firelane

#define FIRELANE_EXPORT extern "C" __attribute__((visibility("default")))
#define FIRELANE_EXPORTS(MODEL)                                                                \
  using FirelaneExecutor = firelane::Executor<MODEL>;                                          \
  FIRELANE_EXPORT void* firelane_create(const firelane::CreateArgs* a) {                       \
    try {                                                                                      \
      return new FirelaneExecutor(*a);                                                         \
    } catch (...) {                                                                            \
      return nullptr;                                                                          \
    }                                                                                          \
  }                                                                                            \
  FIRELANE_EXPORT void firelane_submit(void* e, const firelane::StepArgs* s) {                 \
    static_cast<FirelaneExecutor*>(e)->submit(*s);                                             \
  }                                                                                            \
  FIRELANE_EXPORT void firelane_wait(void* e) { static_cast<FirelaneExecutor*>(e)->wait(); }   \
  FIRELANE_EXPORT void firelane_follow(void* e, const firelane::StepArgs* s) {                 \
    static_cast<FirelaneExecutor*>(e)->follow(*s);                                             \
  }                                                                                            \
  FIRELANE_EXPORT void firelane_hand_out(void* link) {                                         \
    firelane::hand_out(*static_cast<firelane::LinkHeader*>(link));                             \
  }                                                                                            \
  FIRELANE_EXPORT void firelane_end_group(void* link) {                                        \
    firelane::end_group(*static_cast<firelane::LinkHeader*>(link));                            \
  }                                                                                            \
  FIRELANE_EXPORT void firelane_destroy(void* e) { delete static_cast<FirelaneExecutor*>(e); } \
  FIRELANE_EXPORT long long firelane_scratch_bytes(long long max_tokens) {                     \
    return (long long)firelane::scratch_bytes<MODEL>(std::size_t(max_tokens));                 \
  }
