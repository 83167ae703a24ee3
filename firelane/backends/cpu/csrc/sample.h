// The op Sample: output rows are handed out to threads one by one.
#pragma once

#include "context.h"
#include "sample_row.h"

namespace firelane {

// logits: [num_rows][LDX]. A sampled token is written to the slot's tokens, so that the next step may follow at once.
template <int VOCAB, int LDX>
void sample(const Context& c, int thread, const float* logits, int op) {
  auto& sampler = *reinterpret_cast<Sampler<VOCAB>*>(c.thread_scratch(thread));
  const auto* params = static_cast<const SamplingParams*>(c.sampling);
  for (;;) {
    const int row = c.next_item(op);
    if (row >= c.step.num_rows) return;
    const std::size_t slot = c.step.row_slot[row];
    const int position = c.step.row_position[row], kind = c.step.row_kind[row];
    std::int32_t* tokens = c.slot_tokens(slot);
    const SamplingSlot asked{params[slot], tokens, c.bias_ids + slot * kMaxBias, c.bias_values + slot * kMaxBias,
                             c.stop_ids + slot * kMaxStopIds};
    const SampledRow out{c.step.out_tokens + row, c.step.out_logprobs + row,
                         c.step.out_top_ids + std::size_t(row) * kMaxLogprobs,
                         c.step.out_top_logprobs + std::size_t(row) * kMaxLogprobs};
    sampler.run(logits + std::size_t(row) * LDX, asked, position, kind, out);
    if (kind == kSample) tokens[position + 1] = *out.token;
  }
}

}  // namespace firelane
