"""The op Sample on rows of logits, in Triton's interpreter; all that no row may read is poisoned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from firelane.backends.cuda.device.pinned_state import PinnedState
from firelane.backends.cuda.device.shapes import round_up
from firelane.backends.cuda.kernels.sampling.sample import SampleOutputs, SampleScratch, sample
from firelane.backends.cuda.step.tables import LOGIT_ROWS, PARITY, StepTables
from firelane.contract import SAMPLE, StepLimits
from tests.backends.cuda.host_device import HostDevice, poison
from tests.backends.sampling_harness import Request, Row

Case = tuple[np.ndarray, Request]


class Sampler:
    """Rows are sampled together, each in a slot of its own; the scratch is that of the rows before."""

    def __init__(self, vocab: int, *, max_rows: int, max_len: int = 64) -> None:
        limits = StepLimits(
            max_num_seqs=max_rows,
            max_num_batched_tokens=max_rows,
            max_output_rows=max_rows,
            max_model_len=max_len,
            block_size=16,
            num_blocks=1,
        )
        device = HostDevice()
        self.vocab, self.max_rows, self.parity = vocab, max_rows, 1
        self.tables = StepTables.allocate(limits, tile_tokens=16, device=device)
        self.state = PinnedState.allocate(limits, vocab, device)
        self.scratch = SampleScratch.allocate(vocab, max_rows, device)
        self.logits = device.empty(max_rows, round_up(vocab, 64) + 64, dtype=torch.float32)
        self.outputs = SampleOutputs.allocate(max_rows, device)

    def rows(self, cases: Sequence[Case]) -> list[Row]:
        self._clear()
        for row, (logits, request) in enumerate(cases):
            self._ask(row, logits, request)
        self.tables.counts[LOGIT_ROWS], self.tables.counts[PARITY] = len(cases), self.parity
        logits, tokens = self.logits.clone(), self.state.tokens.clone()
        for launch in sample(
            self.logits,
            self.tables,
            self.state,
            self.outputs,
            self.scratch,
            vocab=self.vocab,
            max_rows=self.max_rows,
        ):
            launch.run()
        assert torch.equal(self.logits.view(torch.int32), logits.view(torch.int32))
        for row, (_, request) in enumerate(cases):
            if request.kind == SAMPLE:
                tokens[self.slot(row), request.position + 1] = self.outputs.tokens[self.parity, row]
        assert torch.equal(self.state.tokens, tokens)
        return [self._row(row) for row in range(len(cases))]

    def row(self, logits: np.ndarray, request: Request) -> Row:
        return self.rows([(logits, request)])[0]

    def slot(self, row: int) -> int:
        return (7 * row + 3) % self.max_rows if self.max_rows % 7 else self.max_rows - 1 - row

    def _clear(self) -> None:
        for tensor in vars(self.state).values():
            poison(tensor)
        for tensor in (self.tables.counts, self.tables.rows, self.logits, self.outputs.tokens):
            poison(tensor)
        self.logits[:, self.vocab :] = 3e38  # worse than NaN, which no row draws
        self.outputs.logprobs.fill_(torch.nan)
        self.outputs.top_ids.fill_(-7)
        self.outputs.top_logprobs.fill_(7)

    def _ask(self, row: int, logits: np.ndarray, request: Request) -> None:
        slot, state = self.slot(row), self.state.slots()
        self.logits[row, : self.vocab] = torch.from_numpy(np.array(logits, np.float32))
        self.tables.rows[row] = torch.tensor([row, slot, request.position, request.kind, slot])
        state.sampling[slot] = request.params[0]
        for field, values in (
            (state.tokens, request.tokens),
            (state.bias_ids, request.bias_ids),
            (state.bias_values, request.bias_values),
            (state.stop_ids, request.stop_ids),
            (state.masks, np.frombuffer(request.mask, np.uint32)),
        ):
            field[slot, : len(values)] = values

    def _row(self, row: int) -> Row:
        out, at = self.outputs, (self.parity, row)
        parts = (
            out.tokens[at][None],
            out.logprobs[at][None],
            out.top_ids[at],
            out.top_logprobs[at],
        )
        return Row(
            token=int(out.tokens[at]),
            logprob=float(out.logprobs[at]),
            top_ids=out.top_ids[at].tolist(),
            top_logprobs=out.top_logprobs[at].tolist(),
            bits=b"".join(p.numpy().tobytes() for p in parts),
        )
