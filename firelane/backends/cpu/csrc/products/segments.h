// Segments: runs of inputs that a product sums apart, then as a binary tree, so that ranks that hold whole subtrees of it
// give the bits of one rank (firelane/program/segments.py).
#pragma once

#include "vec/vec.h"

namespace firelane {

// Order in which sums are added: behind the last word of a segment the sums so far are put aside, or added to as many of
// those that were put aside last as `folds` says.
template <int N>
struct SegmentPlan {
  int count = 0;  // of segments that are not empty
  int end[N] = {};
  int folds[N] = {};

  constexpr explicit SegmentPlan(const int (&words)[N]) {
    int at = 0;
    for (int i = 0; i < N; ++i) {
      at += words[i];
      if (words[i] == 0) continue;
      for (int size = 2; size <= N; size *= 2) {
        const int first = i / size * size, half = first + size / 2, last = first + size;
        if (any(words, first, half) && i >= half && !any(words, i + 1, last)) ++folds[count];
      }
      end[count++] = at;
    }
  }
  static constexpr bool any(const int (&words)[N], int first, int last) {
    for (int i = first; i < last; ++i)
      if (words[i]) return true;
    return false;
  }
};

// WORDS of k in each segment, a power of two of them; some may be empty.
template <int... WORDS>
struct Segments {
  using Twice = Segments<2 * WORDS...>;
  static constexpr int kWidths[] = {WORDS...};
  static constexpr SegmentPlan<sizeof...(WORDS)> kPlan{kWidths};
  static constexpr int kCount = kPlan.count, kWords = (WORDS + ...);

  // Whether every segment is a whole number of blocks of so many words.
  static constexpr bool in_blocks(int words) {
    for (int width : kWidths)
      if (width % words) return false;
    return true;
  }
};

// The sums of M rows that were put aside.
template <int M, class SEGMENTS, int V = 2>
class Tree {
 public:
  // Ends segment i: `acc` is its sums, then those of what follows.
  FL_INLINE void close(int i, f32x16 (*acc)[V], int rows = M) {
    if constexpr (SEGMENTS::kCount > 1) {
      for (int folds = SEGMENTS::kPlan.folds[i]; folds > 0; --folds) {
        --depth_;
#pragma GCC unroll 16
        for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
          for (int v = 0; v < V; ++v) acc[m][v] = aside_[depth_][m][v] + acc[m][v];
      }
      if (i + 1 == SEGMENTS::kCount) return;
#pragma GCC unroll 16
      for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          aside_[depth_][m][v] = acc[m][v];
          acc[m][v] = splat(0.0f);
        }
      ++depth_;
    }
  }

 private:
  static constexpr int kLevels = SEGMENTS::kCount > 4 ? 3 : SEGMENTS::kCount > 2 ? 2 : 1;
  f32x16 aside_[SEGMENTS::kCount > 1 ? kLevels : 1][SEGMENTS::kCount > 1 ? M : 1][V];
  int depth_ = 0;
};

}  // namespace firelane
