// Attention spans: the query at position p sees positions first(p) .. p. Mirrors firelane/contract/span.py.
#pragma once

#include "vec/vec.h"

namespace firelane {

struct Causal {
  FL_INLINE static int first(int) { return 0; }
};

// The last N positions, the query's own among them.
template <int N>
struct SlidingWindow {
  FL_INLINE static int first(int position) { return position < N ? 0 : position - N + 1; }
};

// From the last multiple of N on.
template <int N>
struct AlignedChunk {
  FL_INLINE static int first(int position) { return position / N * N; }
};

}  // namespace firelane
