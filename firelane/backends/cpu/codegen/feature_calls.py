"""C++ loops of features: rows that cross between the arena and the step's arrays, which are float32 without
padding. Sources of programs without features know nothing of them."""

from __future__ import annotations

from firelane.backends.cpu.codegen.layout import LANES, Layout
from firelane.backends.cpu.codegen.operands import at, tag
from firelane.program.ops import ReadFeatures, TellFeatures

READ = """\
c.split_up(thread, tokens, [&](int row) {{
      const float* from = c.at<float>({index}) + std::size_t(row) * {features} + {first};
      auto* to = {out} + std::size_t(row) * {stride};
      for (int i = 0; i < {whole}; i += {lanes}) {tag}::store_act(to + i, load(from + i));
      if ({whole} < {width}) {tag}::store_act(to + {whole}, load_part(from + {whole}, {width} - {whole}));
    }});
    {barrier}"""
TELL = """\
c.split_up(thread, tokens, [&](int row) {{
      const auto* from = {x} + std::size_t(row) * {stride};
      float* to = c.at<float>({index}) + std::size_t(row) * {features} + {first};
      for (int i = 0; i < {width}; ++i) to[i] = {tag}::act_to_f32(from[i]);
    }});
    {barrier}"""
BARRIER = 'asm volatile("" ::: "memory");'
"""GCC 12 may take a function that copies between two places relative to the arena for one without effect, and
leave out its call (-fipa-modref); not where memory of any kind may be read behind the loop."""


def read_features(op: ReadFeatures, layout: Layout) -> str:
    """Rows of the arena are padded to whole vectors: what lies behind the last number means nothing."""
    return READ.format(
        index=layout.features_in_index,
        out=at(op.out, layout),
        stride=layout.stride(op.out),
        tag=tag(op.out.dtype),
        width=op.out.width,
        whole=op.out.width // LANES * LANES,
        lanes=LANES,
        first=op.first,
        features=layout.program.features_in,
        barrier=BARRIER,
    )


def tell_features(op: TellFeatures, layout: Layout) -> str:
    return TELL.format(
        index=layout.features_out_index,
        x=at(op.x, layout),
        stride=layout.stride(op.x),
        tag=tag(op.x.dtype),
        width=op.x.width,
        first=op.first,
        features=layout.program.features_out,
        barrier=BARRIER,
    )
