// One output row: penalties, bias, bans, filters, the draw, and log-probabilities. The order is that of the op Sample.
//
// A row's result depends on its logits, its slot and its position alone. SamplingParams and the limits of a request come
// from the contract: contract_source.py writes them before this.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "sampling/philox.h"
#include "sampling/sample_blocks.h"
#include "sampling/sample_mask.h"
#include "sampling/sample_select.h"

namespace firelane {

constexpr float kMostScale = std::numeric_limits<float>::max(), kLeastWeight = std::numeric_limits<float>::min();

// What a slot asks for, and its tokens at positions 0 .. that of the row (SCORE reads one more).
struct SamplingSlot {
  const SamplingParams& params;
  const std::int32_t* tokens;
  const std::int32_t* bias_ids;
  const float* bias_values;
  const std::int32_t* stop_ids;
  const std::uint32_t* mask;  // read where params.masked
};

struct SampledRow {
  std::int32_t* token;
  float* logprob;         // written by SCORE, and where params.logprobs >= 0
  // [kMaxLogprobs]: the first params.logprobs are written, id -1 where the vocabulary ran out, or params.num_reported
  std::int32_t* top_ids;
  float* top_logprobs;
};

// The scratch of one thread, and the work done in it. Its contents between rows mean nothing.
template <int VOCAB>
class Sampler {
 public:
  // The row of `position`: kSample draws the token of position + 1, kScore takes the one that stands there.
  // logits[VOCAB] is read only. NaN logits are taken for -inf; a row of nothing else gives token 0, or the
  // lowest that its mask allows, and a log-probability of NaN.
  void run(const float* logits, const SamplingSlot& slot, std::int32_t position, std::int32_t kind,
           const SampledRow& out) {
    const std::int32_t token = kind == kScore ? slot.tokens[position + 1] : draw(logits, slot, position);
    *out.token = token;
    if (kind == kScore || slot.params.logprobs >= 0) write_logprobs(logits, token, slot, out);
  }

 private:
  static constexpr int kBlocks = blocks_of(VOCAB);

  static void write_logprobs(const float* logits, std::int32_t token, const SamplingSlot& slot, const SampledRow& out) {
    const float top = largest<VOCAB>(logits);
    const double log_sum = double(top) + std::log(exponentials<VOCAB>(logits, top, 1.0f, nullptr, nullptr));
    const bool known = token >= 0 && token < VOCAB;
    *out.logprob = known ? float(double(logits[token]) - log_sum) : std::numeric_limits<float>::quiet_NaN();
    if (slot.params.num_reported > 0) return write_reported(logits, log_sum, slot, out);
    const int n = slot.params.logprobs < kMaxLogprobs ? slot.params.logprobs : kMaxLogprobs;
    int found = best_few<VOCAB>(logits, n, out.top_ids, out.top_logprobs);
    for (int i = 0; i < found; ++i) out.top_logprobs[i] = float(double(out.top_logprobs[i]) - log_sum);
    for (; found < n; ++found) {
      out.top_ids[found] = -1;
      out.top_logprobs[found] = kNegInf;
    }
  }

  // The tokens that the slot names in place of the best ones.
  static void write_reported(const float* logits, double log_sum, const SamplingSlot& slot, const SampledRow& out) {
    for (int i = 0; i < slot.params.num_reported && i < kMaxLogprobs; ++i) {
      const std::int32_t id = slot.bias_ids[i];
      out.top_ids[i] = id;
      out.top_logprobs[i] = in_vocabulary(id) ? float(double(logits[id]) - log_sum) : kNegInf;
    }
  }

  std::int32_t draw(const float* logits, const SamplingSlot& slot, std::int32_t position) {
    const SamplingParams& p = slot.params;
    const float* x = adjust(logits, slot, position);
    if (!(p.temperature > 0)) return first_best(x, slot);
    const float top = largest<VOCAB>(x);
    if (!(std::fabs(top) < HUGE_VALF)) return first_best(x, slot);  // +inf, or nothing left to draw from
    const float scale = 1.0f / p.temperature;
    const double mass = exponentials<VOCAB>(x, top, scale < kMostScale ? scale : kMostScale, weights_, block_mass_);
    const float u = uniform_at(p.seed, position + 1);
    const bool top_k = p.top_k > 0 && p.top_k < VOCAB, top_p = p.top_p < 1, min_p = p.min_p > 0;
    if (!top_k && !top_p && !min_p) return draw_from_all(u * mass);
    return draw_from_candidates(filter(x, p, mass), u);
  }

  static std::int32_t first_best(const float* x, const SamplingSlot& slot) {
    const std::int32_t token = first_largest<VOCAB>(x);
    return slot.params.masked && !(x[token] > kNegInf) ? first_allowed<VOCAB>(slot.mask) : token;
  }

  // The logits after penalties, bias, bans and mask: `logits` itself where the slot asks for none of them. What the
  // mask forbids is -inf from the start, and stays so.
  const float* adjust(const float* logits, const SamplingSlot& slot, std::int32_t position) {
    const SamplingParams& p = slot.params;
    const bool repetition = p.repetition_penalty != 1, output = p.presence_penalty != 0 || p.frequency_penalty != 0;
    const bool ban = position + 1 < p.stop_from && p.num_stop_ids > 0 && !(p.masked && only_stops_are_allowed(slot));
    if (!repetition && !output && !ban && p.num_bias <= 0 && !p.masked) return logits;
    if (p.masked) copy_allowed<VOCAB>(logits, slot.mask, adjusted_);
    else std::memcpy(adjusted_, logits, sizeof(float) * VOCAB);
    if (repetition || output) penalize(slot, repetition ? 0 : p.prompt_len, position + 1);
    for (int i = 0; i < p.num_bias && i < kMaxBias; ++i)
      if (in_vocabulary(slot.bias_ids[i])) adjusted_[slot.bias_ids[i]] += slot.bias_values[i];
    for (int i = 0; ban && i < p.num_stop_ids && i < kMaxStopIds; ++i)
      if (in_vocabulary(slot.stop_ids[i])) adjusted_[slot.stop_ids[i]] = kNegInf;
    return adjusted_;
  }

  // A ban of the stop tokens would then leave nothing, so it counts for nothing.
  static bool only_stops_are_allowed(const SamplingSlot& slot) {
    std::int32_t stops[kMaxStopIds];
    int distinct = 0;
    for (int i = 0; i < slot.params.num_stop_ids && i < kMaxStopIds; ++i) {
      const std::int32_t token = slot.stop_ids[i];
      if (!in_vocabulary(token) || !is_allowed(slot.mask, token)) continue;
      bool is_there = false;
      for (int i = 0; i < distinct; ++i) is_there |= stops[i] == token;
      if (!is_there) stops[distinct++] = token;
    }
    return count_allowed<VOCAB>(slot.mask, distinct + 1) == distinct;
  }

  // Penalties for the tokens at positions [begin, end). counts_ is touched only where those tokens are, so it need not
  // be clear.
  void penalize(const SamplingSlot& slot, std::int32_t begin, std::int32_t end) {
    constexpr std::int32_t kDone = -1;
    const SamplingParams& p = slot.params;
    for (std::int32_t i = begin; i < end; ++i)
      if (in_vocabulary(slot.tokens[i])) counts_[slot.tokens[i]] = 0;
    for (std::int32_t i = begin > p.prompt_len ? begin : p.prompt_len; i < end; ++i)
      if (in_vocabulary(slot.tokens[i])) ++counts_[slot.tokens[i]];
    for (std::int32_t i = begin; i < end; ++i) {
      const std::int32_t token = slot.tokens[i];
      if (!in_vocabulary(token) || counts_[token] == kDone) continue;
      float& x = adjusted_[token];
      x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
      x -= p.frequency_penalty * float(counts_[token]);
      if (counts_[token] > 0) x -= p.presence_penalty;
      counts_[token] = kDone;
    }
  }

  // Candidates, in increasing id, after min_p, top_k and top_p; returns how many. x is what weights_ were made of.
  int filter(const float* x, const SamplingParams& p, double mass) {
    const bool top_k = p.top_k > 0 && p.top_k < VOCAB;
    const float floor = p.min_p > 0 ? (p.min_p < 1 ? p.min_p : 1.0f) : kLeastWeight;  // the largest weight is 1
    const float needless = p.top_p < 1 && !top_k && !(p.min_p > 0) ? needless_weight(p.top_p, mass) : 0.0f;
    int n = collect(x, top_k ? kth_bound(x, p.top_k) : kNegInf, floor > needless ? floor : needless);
    if (top_k && n > p.top_k) n = keep(x, n, [](std::int32_t) { return 1.0; }, p.top_k);
    if (top_k || p.min_p > 0) mass = candidate_mass(n);
    if (p.top_p < 1) n = keep(x, n, [this](std::int32_t id) { return double(weights_[id]); }, double(p.top_p) * mass);
    return n;
  }

  // Tokens with less than this weight cannot be among the largest whose mass is top_p * mass: all of them together have
  // less than half of the mass that may be left out.
  static float needless_weight(float top_p, double mass) {
    const double left_out = top_p > 0 ? 1.0 - double(top_p) : 1.0;
    return float(0.5 * left_out * mass / VOCAB);
  }

  // A value that at least k tokens reach, and not many more: the k-th largest of the blocks' maxima.
  float kth_bound(const float* x, int k) {
    if (k > kBlocks) return kNegInf;
    block_maxima<VOCAB>(x, block_max_);
    for (int b = 0; b < kBlocks; ++b) candidates_[b] = b;
    return value_of(
        select(block_max_, candidates_, kBlocks, [](std::int32_t) { return 1.0; }, k, pending_, histogram_).key);
  }

  // Candidates are the tokens with x >= bound and a weight >= floor > 0, in increasing id.
  int collect(const float* x, float bound, float floor) {
    int n = 0;
    for (int b = 0; b < kBlocks; ++b) {
      const Block in = load_block<VOCAB>(x, b), w = load_block<kBlocks * kBlock>(weights_, b);
      LaneMask mask = {};
      for (int j = 0; j < kVectors; ++j) mask |= (in.v[j] >= bound) & (w.v[j] >= floor);
      if (!any(mask)) continue;
      const int end = b + 1 == kBlocks ? VOCAB : (b + 1) * kBlock;
      for (int i = b * kBlock; i < end; ++i) {
        candidates_[n] = i;
        n += (x[i] >= bound) & (weights_[i] >= floor);
      }
    }
    return n;
  }

  template <class Measure>
  int keep(const float* x, int n, Measure measure, double target) {
    return apply_cut(x, candidates_, n, select(x, candidates_, n, measure, target, pending_, histogram_));
  }

  // The mass of candidates [begin, end), at most kBlock of them: four sums side by side.
  double run_mass(int begin, int end) const {
    double part[4] = {};
    for (int i = begin; i < end; ++i) part[i % 4] += weights_[candidates_[i]];
    return (part[0] + part[1]) + (part[2] + part[3]);
  }

  double candidate_mass(int n) const {
    double mass = 0;
    for (int i = 0; i < n; i += kBlock) mass += run_mass(i, i + kBlock < n ? i + kBlock : n);
    return mass;
  }

  std::int32_t draw_from_candidates(int n, float u) const {
    const double target = u * candidate_mass(n);
    double reached = 0;
    int i = 0;
    for (; i + kBlock < n; i += kBlock) {
      const double mass = run_mass(i, i + kBlock);
      if (reached + mass > target) break;
      reached += mass;
    }
    const int last = i + kBlock < n ? i + kBlock - 1 : n - 1;
    while (i < last && !((reached += weights_[candidates_[i]]) > target)) ++i;
    return candidates_[i];
  }

  std::int32_t draw_from_all(double target) const {
    double reached = 0;
    int block = 0;
    while (block + 1 < kBlocks && !(reached + block_mass_[block] > target)) reached += block_mass_[block++];
    std::int32_t last = block * kBlock;
    for (int i = block * kBlock; i < (block + 1) * kBlock; ++i) {
      reached += weights_[i];
      if (weights_[i] > 0) last = i;
      if (reached > target) break;
    }
    return last;  // within rounding of the block's own sum where the loop ran to its end
  }

  static bool in_vocabulary(std::int32_t token) { return token >= 0 && token < VOCAB; }

  float adjusted_[kBlocks * kBlock];
  float weights_[kBlocks * kBlock];
  double block_mass_[kBlocks];
  float block_max_[kBlocks];
  double histogram_[kDigits];
  std::int32_t counts_[VOCAB];
  std::int32_t candidates_[VOCAB];
  std::int32_t pending_[VOCAB];
};

template <int VOCAB>
constexpr std::size_t kSampleScratchBytes = sizeof(Sampler<VOCAB>);

}  // namespace firelane
