// What output rows give: the op Sample, whose rows are handed out to threads one by one, and hidden states.
#pragma once

#include "context.h"
#include "sampling/sample_row.h"

namespace firelane {

// logits: [num_rows][LDX]. A sampled token is written to the slot's tokens, so that the next step may follow at once.
template <int VOCAB, int LDX>
void sample(const Context& c, int thread, const float* logits, int op) {
  auto& sampler = *reinterpret_cast<Sampler<VOCAB>*>(c.thread_scratch(thread));
  const auto* params = static_cast<const SamplingParams*>(c.sampling);
  constexpr std::size_t mask_words = VOCAB / 32 + 1;
  for (;;) {
    const int row = c.next_item(op);
    if (row >= c.logit_rows) return;
    const std::size_t slot = c.step.row_slot[row];
    const std::size_t after_draft = c.step.row_mask[row];
    const std::size_t mask = after_draft ? c.limits.max_num_seqs + after_draft - 1 : slot;
    const int position = c.step.row_position[row], kind = c.step.row_kind[row];
    if (kind == kEmbed) continue;
    std::int32_t* tokens = c.slot_tokens(slot);
    const SamplingSlot asked{params[slot], tokens, c.bias_ids + slot * kMaxBias, c.bias_values + slot * kMaxBias,
                             c.stop_ids + slot * kMaxStopIds, c.masks + mask * mask_words};
    const SampledRow out{c.step.out_tokens + row, c.step.out_logprobs + row,
                         c.step.out_top_ids + std::size_t(row) * kMaxLogprobs,
                         c.step.out_top_logprobs + std::size_t(row) * kMaxLogprobs};
    sampler.run(logits + std::size_t(row) * LDX, asked, position, kind, out);
    if (kind == kSample) tokens[position + 1] = *out.token;
  }
}

// x: [num_rows][LDX], the input of the program's head or what it ends with, given back as floats for the rows that ask for it.
template <class T, int WIDTH, int LDX>
FL_KERNEL void give_hidden(const Context& c, int thread, const typename T::act* x) {
  c.split_up(thread, c.step.num_rows, [&](int row) {
    if (c.step.row_kind[row] != kEmbed) return;
    float* out = c.step.out_hidden + std::size_t(row) * WIDTH;
    for (int i = 0; i < WIDTH; ++i) out[i] = T::act_to_f32(x[std::size_t(row) * LDX + i]);
  });
}

}  // namespace firelane
