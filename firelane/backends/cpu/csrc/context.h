// The arrays that cross from Python (native.py), and what every kernel sees of a step.
#pragma once

#include <cstdint>

#include "vec/vec.h"

namespace firelane {

struct Limits {
  std::int32_t max_num_seqs, max_num_batched_tokens, max_output_rows, max_model_len, block_size, num_blocks,
      blocks_per_seq, threads;
};

// What this rank has of an op: so many rows of a table or experts, from `first` on; of a draw, one or none.
struct OpPart {
  std::int32_t first, count;
};

// A rank of another host that this one exchanges rows with; its columns in a row that is gathered, in bytes.
struct Peer {
  std::int32_t fd, lane;
  std::size_t column, width;
};

// A value that a stage hands on: bytes of a row, and of the rows of those before it.
struct MailPart {
  std::size_t row_bytes, before;
};

// Fixed for the life of an executor; the memory belongs to the Python side.
struct CreateArgs {
  Limits limits;
  const void* const* weights;  // by weight index of the generated code
  std::uint8_t* pages;         // the KV cache: num_blocks pages, each of all layers of one cache group
  const float* const* position_tables;  // of rotations [max_model_len][head_dim]: cosines, then sines; of factors [max_model_len]
  std::uint8_t* arena;         // activations
  const std::size_t* offsets;  // by value: where its rows begin in the arena
  const OpPart* parts;         // by op
  std::uint8_t* scratch;       // per thread, as many bytes each as firelane_scratch_bytes() says
  std::int32_t* tokens;
  const std::int32_t* block_tables;
  const void* sampling;
  const std::int32_t* bias_ids;
  const float* bias_values;
  const std::int32_t* stop_ids;
  const std::uint32_t* masks;
  std::uint8_t* states;  // of recurrent layers: one of each slot, then snapshots
  double* op_seconds;  // by op, accumulated; the last entry counts steps
  void* link;          // LinkHeader (link.h) of the ranks, null where there is one
  std::uint8_t* shared;      // rows that all ranks of a stage see: parts of sums, in turns in one of two places, each
  std::size_t shared_apart;  // rank's so far behind that of the rank before
  std::uint8_t *mail_in, *mail_out;  // rows from the stage before and for the next one, of a step in one of `depth` places
  std::size_t mail_apart;            // so far behind each other, in turns
  std::int32_t stage, lane, ranks, depth, link_spins;  // lane: place of the rank among the `ranks` of its stage
  std::int32_t in_flight;  // steps that may be submitted before the first of them is waited for
  const Peer* peers;       // this rank itself, then `peer_count` others
  std::int32_t peer_count, lanes_here;   // lanes_here: ranks of the stage on each of its hosts
  std::int32_t mail_in_fd, mail_out_fd;  // connections to stages of other hosts, or -1
};

struct StepArgs {
  std::int32_t num_chunks, num_tokens, num_rows, pad;
  const std::int32_t *chunk_slot, *chunk_start, *chunk_len, *chunk_from, *chunk_save, *chunk_drafted, *chunk_spare;
  const std::int32_t *row_token, *row_slot, *row_position, *row_kind, *row_mask;
  std::int32_t* out_tokens;
  float* out_logprobs;
  std::int32_t* out_top_ids;
  float* out_top_logprobs;
  float* out_hidden;
};
static_assert(sizeof(Limits) == kLimitsBytes && sizeof(CreateArgs) == kCreateBytes && sizeof(StepArgs) == kStepBytes &&
              sizeof(Peer) == kPeerBytes);

// The part of [0, n) that thread t of `threads` takes: contiguous, sizes differ by one at most.
struct Range {
  int begin, end;
};
FL_INLINE Range split(int n, int t, int threads) {
  return {int(std::int64_t(n) * t / threads), int(std::int64_t(n) * (t + 1) / threads)};
}

// Counts what was taken of one op's work; on a cache line of its own.
struct alignas(64) Counter {
  int taken = 0;
  int take() { return __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED); }  // <atomic> takes long to compile
};

// Of a recurrent layer: where its numbers begin in each state of the pool, and how far apart states lie, in bytes.
struct StatePlace {
  std::size_t offset, stride;
};

struct Context : CreateArgs {
  StepArgs step;
  std::uint32_t number;          // of the step, from 0 on
  std::uint32_t link_begun;      // arrivals at the barriers of the stage's ranks before this step
  std::int32_t logit_rows;       // output rows that need logits: none behind them does
  std::int32_t* token_slot;      // by token row
  std::int32_t* token_position;  // by token row
  std::int32_t* token_last;      // by token row: 1 for the last token of its chunk
  std::int32_t* chunk_row;       // by chunk: its first token row
  Counter* counters;             // by op and thread: work taken by kernels that share it out as they go
  std::size_t scratch_stride;
  std::size_t scratch_rows;  // where, in a thread's scratch, what it needs for each token row begins
  Context* own;              // the same step with the tokens of this rank alone, where ranks divide rows; from
  std::int32_t own_first;    // this token row on

  std::uint8_t* thread_scratch(int thread) const { return scratch + scratch_stride * thread; }
  std::uint8_t* thread_rows(int thread) const { return thread_scratch(thread) + scratch_rows; }

  int threads() const { return limits.threads; }

  // The next of an op's items that all threads take from.
  int next_item(int op) const { return counters[std::size_t(op) * threads()].take(); }

  // Calls work(item) for each item of this thread's share.
  template <class Work>
  void split_up(int thread, int items, const Work& work) const {
    const Range mine = split(items, thread, threads());
    for (int item = mine.begin; item < mine.end; ++item) work(item);
  }

  // Calls work(item) for each of `items`, once, on some thread. A thread takes its own share in order, so that it reads
  // memory in order, and then what is left of the others': cores are not equally fast, and a barrier waits for the
  // slowest.
  template <class Work>
  void for_each_stealing(int op, int thread, int items, const Work& work) const {
    for (int i = 0; i < threads(); ++i) {
      const int owner = (thread + i) % threads();
      const Range range = split(items, owner, threads());
      Counter& counter = counters[std::size_t(op) * threads() + owner];
      for (int item = range.begin + counter.take(); item < range.end; item = range.begin + counter.take()) work(item);
    }
  }

  const std::int32_t* block_table(int group, int slot) const {
    return block_tables + (std::size_t(group) * limits.max_num_seqs + slot) * limits.blocks_per_seq;
  }
  float* state(StatePlace place, int index) const {
    return reinterpret_cast<float*>(states + place.stride * index + place.offset);
  }
  std::int32_t* slot_tokens(int slot) const { return tokens + std::size_t(slot) * (limits.max_model_len + 1); }
  // Parts of a sum in place 0 or 1, of the first rank.
  template <class T>
  T* shared_rows(int place) const {
    return reinterpret_cast<T*>(shared + place * ranks * shared_apart);
  }
  std::uint8_t* mail(std::uint8_t* places) const { return places + number % depth * mail_apart; }
  template <class T>
  T* at(int value) const {
    return reinterpret_cast<T*>(arena + offsets[value]);
  }
  template <class T>
  const T* weight(int i) const {
    return static_cast<const T*>(weights[i]);
  }
};

}  // namespace firelane
