"""Ranks: a model's program cut for a group of processes, and the program of each of them."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.errors import UsageError
from firelane.parallel.experts import INSIDE_UNIT, experts, has_experts
from firelane.parallel.rows import share_rows
from firelane.parallel.segments import segmented
from firelane.parallel.shard import AttentionShare, check_ranks, divides_heads, shard
from firelane.parallel.stage import stage
from firelane.program.cache import grouping_of
from firelane.program.ops import ExpertGatedLinear
from firelane.program.program import Program


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """A group of ranks: `tp` in each of `pp` stages, or so many that share experts. Rank numbers count the
    ranks of a stage first. The ranks of a stage share MLPs, experts and vocabulary, and attention as
    `attention` says."""

    tp: int = 1
    pp: int = 1
    experts: int = 1
    attention: AttentionShare = AttentionShare.HEADS
    expert_columns: bool = False
    """Whether a rank has columns of all experts, in place of some of the experts."""

    @classmethod
    def of(
        cls,
        program: Program,
        *,
        tp: int = 1,
        pp: int = 1,
        ep: int = 1,
        hosts: int = 1,
        one_cache: bool = True,
    ) -> RankLayout:
        """The layout that a user asks for. hosts: that the ranks are on;
        ranks of a stage that are on several have no memory in common. one_cache: whether those of one host
        can have one KV cache. Raises UsageError where there are no
        experts to share."""
        experts = any(map(has_experts, program.ops))
        if ep > 1 and not experts:
            raise UsageError(
                f"--expert-parallel-size {ep}: {program.name} has no experts to share; leave it out, or "
                f"share all of the model with --tensor-parallel-size {ep}"
            )
        check_ranks("expert parallel", ep)
        attention = AttentionShare.HEADS
        if tp == 1 and ep > 1 and pp % hosts:
            attention = AttentionShare.WHOLE
        elif tp == 1 and not divides_heads(program, ep):
            attention = AttentionShare.ROWS if one_cache else AttentionShare.WHOLE
        lanes = tp if ep == 1 and experts else ep
        by_columns = one_cache and pp % hosts == 0 and _has_columns(program, lanes)
        return cls(tp=tp, pp=pp, experts=lanes, attention=attention, expert_columns=by_columns)

    def __post_init__(self) -> None:
        if self.experts > 1 and self.tp > 1 and self.experts != self.tp:
            raise UsageError(
                f"expert parallel {self.experts} with tensor parallel {self.tp}: the ranks of a stage share "
                "both, so the numbers have to be equal; give both the same, or one of them alone"
            )

    @property
    def lanes(self) -> int:
        """Ranks of a stage."""
        return max(self.tp, self.experts)

    @property
    def ranks(self) -> int:
        return self.lanes * self.pp

    def stage_of(self, rank: int) -> int:
        return rank // self.lanes

    def lane_of(self, rank: int) -> int:
        """Place of the rank in its stage."""
        return rank % self.lanes

    @property
    def sampler(self) -> int:
        """The rank that draws tokens: the first of the last stage."""
        return (self.pp - 1) * self.lanes


def rank_program(program: Program, layout: RankLayout, rank: int) -> Program:
    """The program that a rank runs; segments are there also where it is the only one. Raises UsageError."""
    assert 0 <= rank < layout.ranks, f"rank {rank} of {layout.ranks}"
    _check_features(program, layout)
    check_ranks("expert parallel", layout.experts)
    lane = layout.lane_of(rank)
    staged = stage(segmented(program), layout.pp, layout.stage_of(rank))
    cut = shard(staged, layout.lanes, lane, attention=layout.attention)
    if layout.attention is AttentionShare.ROWS:
        cut = share_rows(cut, layout.lanes, lane)
    return experts(cut, layout.lanes, lane, by_columns=layout.expert_columns)


def rank_programs(program: Program, layout: RankLayout, asked: str) -> list[Program]:
    """The programs of all ranks. asked: options that a user gave for them. Raises UsageError also where block
    tables would not mean the same on all."""
    programs = [rank_program(program, layout, rank) for rank in range(layout.ranks)]
    if len({own.grouping or grouping_of(own.cache_groups) for own in programs}) > 1:
        raise UsageError(f"{asked}: the KV heads of this model cannot be shared evenly enough; lower it")
    return programs


def _check_features(program: Program, layout: RankLayout) -> None:
    """Each rank of the only stage can tell what it has whole, and what one reads no other rank gets."""
    if layout.pp > 1 and program.features_out:
        raise UsageError(
            f"pipeline parallel {layout.pp}: no one stage can tell the features of {program.name}; leave it "
            "out, or draft without a head that reads them"
        )
    if layout.ranks > 1 and program.features_in:
        raise UsageError(f"{layout.ranks} ranks: {program.name} reads features, and runs on one")


def _has_columns(program: Program, ranks: int) -> bool:
    """Whether each of several ranks can have columns of all experts."""
    found = [op for op in program.ops if isinstance(op, ExpertGatedLinear) and has_experts(op)]
    inside = (op.out.width // op.picks.width for op in found)
    return 1 < ranks <= 8 and bool(found) and all(width >= ranks * INSIDE_UNIT for width in inside)
