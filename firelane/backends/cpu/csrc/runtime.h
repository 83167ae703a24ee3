// The C interface of a compiled program. The generated code defines `struct Program` with kOps, kScratchBytes,
// kScratchRowBytes (for each token row of the largest step), kMeetings (barriers of a stage's ranks in a step),
// kReceives and kSends (whether rows come from another stage or go to one), kReceived and kSent (of which values),
// kDividesRows (whether the ranks of a stage divide the tokens of a step) and run().
#pragma once

#include <ctime>
#include <vector>

#include "context.h"
#include "ranks/hosts.h"
#include "ranks/link.h"
#include "threads/thread_pool.h"

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

// A step in flight, and what is made of its inputs for the kernels.
struct StepState {
  StepState(const CreateArgs& args, int ops)
      : slot(args.limits.max_num_batched_tokens),
        position(slot.size()),
        last(slot.size()),
        chunk_row(args.limits.max_num_seqs),
        own_slot(args.limits.max_num_seqs),
        own_start(own_slot.size()),
        own_len(own_slot.size()),
        counters(std::size_t(ops) * args.limits.threads) {
    static_cast<CreateArgs&>(context) = args;
    context.token_slot = slot.data();
    context.token_position = position.data();
    context.token_last = last.data();
    context.chunk_row = chunk_row.data();
    context.counters = counters.data();
    context.own = &own;
  }

  void begin(const StepArgs& step) {
    context.step = step;
    int row = 0;
    for (int i = 0; i < step.num_chunks; ++i) {
      chunk_row[i] = row;
      for (int t = 0; t < step.chunk_len[i]; ++t, ++row) {
        slot[row] = step.chunk_slot[i];
        position[row] = step.chunk_start[i] + t;
        last[row] = t + 1 == step.chunk_len[i];
      }
    }
    context.logit_rows = step.num_rows;
    while (context.logit_rows > 0 && step.row_kind[context.logit_rows - 1] == kEmbed) --context.logit_rows;
    for (auto& counter : counters) counter.taken = 0;
  }

  // What ops of OWN rows see of the step that has begun: of each chunk the tokens of this rank.
  void divide() {
    const Range mine = split(context.step.num_tokens, context.lane, context.ranks);
    context.own_first = mine.begin;
    own = context;
    own.token_slot += mine.begin;
    own.token_position += mine.begin;
    own.token_last += mine.begin;
    own.step.num_tokens = mine.end - mine.begin;
    own.step.chunk_slot = own_slot.data();
    own.step.chunk_start = own_start.data();
    own.step.chunk_len = own_len.data();
    own.step.num_chunks = 0;
    for (int i = 0; i < context.step.num_chunks; ++i) {
      const int first = max(mine.begin - chunk_row[i], 0);
      const int last = min(mine.end - chunk_row[i], context.step.chunk_len[i]);
      if (first >= last) continue;
      const int number = own.step.num_chunks++;
      own_slot[number] = context.step.chunk_slot[i];
      own_start[number] = context.step.chunk_start[i] + first;
      own_len[number] = last - first;
    }
  }

  Context context{}, own{};
  std::vector<std::int32_t> slot, position, last, chunk_row, own_slot, own_start, own_len;
  std::vector<Counter> counters;
};

template <class Program>
class Executor {
 public:
  explicit Executor(const CreateArgs& args) : args_(args), pool_(args.limits.threads, &Executor::work, this) {
    steps_.reserve(args.in_flight);
    for (int i = 0; i < args.in_flight; ++i) {
      Context& c = steps_.emplace_back(args, Program::kOps).context;
      c.scratch_stride = scratch_bytes<Program>(args.limits.max_num_batched_tokens);
      c.scratch_rows = Program::kScratchBytes;
    }
  }

  // At most CreateArgs::in_flight of them before the first is waited for.
  void submit(const StepArgs& step) {
    StepState& state = steps_[submitted_ % steps_.size()];
    state.context.number = submitted_++;
    state.context.link_begun = met_;
    if (args_.ranks > 1) met_ += std::uint32_t(Program::kMeetings * args_.ranks);
    state.begin(step);
    if (Program::kDividesRows) state.divide();
    pool_.submit();
  }

  void wait() { pool_.wait(); }

  // Runs the steps that the engine hands out: `steps` point at what lies in their places. Returns once the group ends.
  void follow(const StepArgs* steps) {
    LinkHeader& link = *static_cast<LinkHeader*>(args_.link);
    for (std::uint32_t number = 0;; ++number) {
      await_count(link, link.steps, number + 1, args_.link_spins ? kStepSpins : 0);
      if (link.ended.load()) return;
      const int place = number % args_.depth;
      StepArgs step = steps[place];
      step.num_chunks = link.counts[place][0];
      step.num_tokens = link.counts[place][1];
      step.num_rows = link.counts[place][2];
      submit(step);
      wait();
    }
  }

  // Ends an op: every thread has finished it. The last one notes the time: others may not run for a while.
  void sync(int op) {
    pool_.sync([this, op] {
      const double now = seconds_now();
      args_.op_seconds[op] += now - mark_;
      mark_ = now;
    });
  }

 private:
  static void work(void* self, int thread, std::uint32_t number) {
    auto& executor = *static_cast<Executor*>(self);
    Context& c = executor.steps_[number % executor.steps_.size()].context;
    if (Program::kReceives) executor.receive_rows(c, thread);
    if (c.ranks > 1) meet(c, thread, 0);
    const double begun = seconds_now();
    if (thread == 0) executor.mark_ = begun;
    Program::run(executor, c, thread);
    if (thread == 0) executor.end(c, begun);
  }

  // By one thread, when all have run the program.
  void end(const Context& c, double begun) {
    args_.op_seconds[Program::kOps] += 1;
    if (c.link) stage_header(c.link, c.stage).busy_seconds[c.lane] += seconds_now() - begun;
    if (!Program::kSends) return;
    if (c.mail_out_fd >= 0) carry_mail(c, c.mail_out_fd, true, c.mail_out, Program::kSent);
    rows_lie(c, c.stage);
  }

  void receive_rows(const Context& c, int thread) {
    if (c.mail_in_fd >= 0 && thread == 0) {
      carry_mail(c, c.mail_in_fd, false, c.mail_in, Program::kReceived);
      rows_lie(c, c.stage - 1);
    }
    await_rows(c);
  }

  const CreateArgs args_;
  std::vector<StepState> steps_;  // take turns
  std::uint32_t submitted_ = 0;
  std::uint32_t met_ = 0;  // arrivals at the barriers of the steps submitted
  double mark_ = 0;
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
    static_cast<FirelaneExecutor*>(e)->follow(s);                                              \
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
