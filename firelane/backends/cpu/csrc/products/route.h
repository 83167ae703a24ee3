// Route: the experts that each row goes to, and what they count for.
#pragma once

#include <limits>

#include "context.h"

namespace firelane {

// Scores of a row, padded with -inf to whole vectors.
template <int EXPERTS>
struct alignas(64) Scores {
  static constexpr int kPadded = (EXPERTS + 15) / 16 * 16;
  float of[kPadded];

  FL_INLINE float& operator[](int expert) { return of[expert]; }
  FL_INLINE float operator[](int expert) const { return of[expert]; }

  // The first of the experts with the highest score, below -inf as it is not a number.
  FL_INLINE int best() const {
    f32x16 most = load(of);
    for (int i = 16; i < kPadded; i += 16) most = max(most, load(of + i));
    const float highest = hmax(most);
    int expert = 0;
    while (of[expert] != highest) ++expert;
    return expert;
  }
};

// Both are NaN, or both at their limits, where the logits are.
template <int EXPERTS>
FL_INLINE void softmax(Scores<EXPERTS>& scores) {
  using S = Scores<EXPERTS>;
  f32x16 most = load(scores.of);
  for (int i = 16; i < S::kPadded; i += 16) most = max(most, load(scores.of + i));
  const float highest = hmax(most);
  f32x16 total{};
  for (int i = 0; i < S::kPadded; i += 16) {
    const f32x16 power = exp_16(load(scores.of + i) - highest);
    store(scores.of + i, power);
    total += power;
  }
  const float sum = firelane::sum(total);
  for (int i = 0; i < S::kPadded; i += 16) store(scores.of + i, load(scores.of + i) / sum);
}

template <int EXPERTS>
FL_INLINE void sigmoid(Scores<EXPERTS>& scores) {
  for (int i = 0; i < Scores<EXPERTS>::kPadded; i += 16)
    store(scores.of + i, 1.0f / (1.0f + exp_16(-max(load(scores.of + i), splat(-87.0f)))));
}

// Groups of experts beside each other, of which the KEEP best are left: by the sum of their BEST best.
template <int COUNT, int KEEP, int BEST>
struct ExpertGroups {
  template <int EXPERTS>
  static FL_INLINE void mask(Scores<EXPERTS>& wanted) {
    constexpr int size = EXPERTS / COUNT;
    Scores<COUNT> goodness;
    for (int g = 0; g < Scores<COUNT>::kPadded; ++g)
      goodness[g] = g < COUNT ? sum_of_best(wanted.of + g * size, size) : -std::numeric_limits<float>::infinity();
    bool kept[COUNT] = {};
    for (int i = 0; i < KEEP; ++i) {
      const int g = goodness.best();
      kept[g] = true;
      goodness[g] = -std::numeric_limits<float>::infinity();
    }
    for (int e = 0; e < EXPERTS; ++e)
      if (!kept[e / size]) wanted[e] = -std::numeric_limits<float>::infinity();
  }

 private:
  static FL_INLINE float sum_of_best(const float* scores, int size) {
    float best[BEST];
    for (int i = 0; i < BEST; ++i) best[i] = std::numeric_limits<float>::lowest();
    for (int e = 0; e < size; ++e) {
      float score = scores[e];
      for (int i = 0; i < BEST; ++i)
        if (score > best[i]) std::swap(score, best[i]);
    }
    float total = best[0];
    for (int i = 1; i < BEST; ++i) total += best[i];
    return max(total, std::numeric_limits<float>::lowest());  // two of the lowest add up to -inf
  }
};

struct NoGroups {
  template <int EXPERTS>
  static FL_INLINE void mask(Scores<EXPERTS>&) {}
};

enum class Score { kSoftmax, kSigmoid };

// Vectors that are nullptr stand for zeros (bias) and ones (factors).
struct RouteArgs {
  const float* logits;
  const float* bias;
  const float* factors;
  float scale;
  std::int32_t* picks;
  float* shares;
};

template <int EXPERTS, int PICKS, Score SCORE, class Groups, bool NORMALISE, int LDX, int LDP, int LDS>
struct Route {
  using Scored = Scores<EXPERTS>;

  static FL_KERNEL void run(const Context& c, int thread, int rows, const RouteArgs& a) {
    const Range mine = split(rows, thread, c.threads());
    for (int row = mine.begin; row < mine.end; ++row)
      run_row(a, a.logits + std::size_t(row) * LDX, a.picks + std::size_t(row) * LDP,
              a.shares + std::size_t(row) * LDS);
  }

 private:
  static FL_INLINE void run_row(const RouteArgs& a, const float* logits, std::int32_t* picks, float* shares) {
    Scored scores, wanted;
    for (int e = 0; e < Scored::kPadded; ++e)
      scores[e] = e < EXPERTS ? logits[e] : -std::numeric_limits<float>::infinity();
    if constexpr (SCORE == Score::kSoftmax)
      softmax<EXPERTS>(scores);
    else
      sigmoid<EXPERTS>(scores);
    want(scores, a.bias, wanted);
    Groups::mask(wanted);
    choose(wanted, picks);
    share(scores, a, picks, shares);
  }

  // Scores that are no numbers are the lowest, so that whatever the logits are, the picks are experts.
  static FL_INLINE void want(const Scored& scores, const float* bias, Scored& wanted) {
    for (int e = 0; e < Scored::kPadded; ++e) {
      const float score = bias && e < EXPERTS ? scores[e] + bias[e] : scores[e];
      const float least = std::numeric_limits<float>::lowest();
      wanted[e] = e >= EXPERTS ? -std::numeric_limits<float>::infinity() : score > least ? score : least;
    }
  }

  static FL_INLINE void choose(Scored& wanted, std::int32_t* picks) {
    for (int i = 0; i < PICKS; ++i) {
      const int expert = wanted.best();
      wanted[expert] = -std::numeric_limits<float>::infinity();
      int at = i;
      for (; at > 0 && picks[at - 1] > expert; --at) picks[at] = picks[at - 1];
      picks[at] = expert;
    }
  }

  static FL_INLINE void share(const Scored& scores, const RouteArgs& a, const std::int32_t* picks, float* shares) {
    float total = 0.0f;
    for (int i = 0; i < PICKS; ++i) total += shares[i] = scores[picks[i]];
    for (int i = 0; i < PICKS; ++i) {
      if constexpr (NORMALISE) shares[i] /= total + 1e-20f;
      shares[i] *= a.scale;
      if (a.factors) shares[i] *= a.factors[picks[i]];
    }
  }
};

}  // namespace firelane
