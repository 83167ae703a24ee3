"""Log-probabilities of one sequence, by Firelane and by llama.cpp on the same weights.

    agreement_with_llamacpp.py MODEL --gguf FILE --llamacpp-python PYTHON [--prompt 600] [--output 32]

Firelane reads random tokens and goes on greedily; llama.cpp then reads the whole sequence. Printed are the
largest and the mean difference of the log-probabilities of its tokens, and at how many of the generated ones
llama.cpp's most likely token is the same: engines are only worth comparing that compute the same model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane import env
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.models.config.reader import read_config
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, Submit

LLAMACPP = """
import ctypes, json, os, sys, llama_cpp as L, numpy as np
tokens = json.loads(sys.stdin.read())
L.llama_backend_init(); quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
model = L.llama_model_load_from_file(sys.argv[1].encode(), L.llama_model_default_params())
params = L.llama_context_default_params(); params.n_ctx = 4096; params.n_threads_batch = os.cpu_count()
context = L.llama_init_from_model(model, params)
width = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
for start in range(0, len(tokens) - 1, 64):
    part = range(start, min(start + 64, len(tokens) - 1)); batch = L.llama_batch_init(len(part), 0, 1)
    batch.n_tokens = len(part)
    for i, at in enumerate(part):
        batch.token[i] = tokens[at]; batch.pos[i] = at; batch.n_seq_id[i] = 1; batch.seq_id[i][0] = 0
        batch.logits[i] = 1
    assert L.llama_decode(context, batch) == 0
    for i, at in enumerate(part):
        x = np.ctypeslib.as_array(L.llama_get_logits_ith(context, i), (width,)).astype(np.float64)
        whole = x.max() + np.log(np.exp(x - x.max()).sum())
        print(json.dumps([int(x.argmax()), x[tokens[at + 1]] - whole]))
"""


@dataclass
class Drawn:
    """A channel that submits one request and keeps the tokens of the answer with all log-probabilities."""

    request: NewRequest | None
    tokens: dict[int, int] = field(default_factory=dict[int, int])
    logprobs: dict[int, float] = field(default_factory=dict[int, float])
    is_finished: bool = False

    def receive(self, wait_s: float | None) -> list[Submit]:
        del wait_s
        request, self.request = self.request, None
        return [Submit([request])] if request is not None else []

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        for entry in frame.logprobs:
            self.tokens[entry.position], self.logprobs[entry.position] = entry.token, entry.logprob
        self.is_finished = self.is_finished or bool(frame.finished)


def generate(model: Path, prompt: NDArray[np.int32], output: int) -> Drawn:
    sampling = Sampling(temperature=0.0, max_tokens=output, logprobs=0, prompt_logprobs=0)
    channel = Drawn(NewRequest(id=1, prompt=prompt.tobytes(), sampling=sampling))
    sizes: dict[str, Any] = {"max_num_seqs": 1, "kv_cache_bytes": 1 << 30, "max_model_len": 4096}
    config = EngineConfig(model_dir=model, cache_dir=env.read().cache_dir, backend="cpu", **sizes)
    core = EngineCore(load_executor(config, lambda *_: None), channel, prefix_cache=False)
    while not (channel.is_finished and core.is_idle):
        core.step()
    return channel


def read_with_llamacpp(python: str, file: Path, tokens: list[int]) -> list[tuple[int, float]]:
    """For each token but the first: the most likely one, and its own log-probability."""
    command = [python, "-c", LLAMACPP, str(file)]
    done = subprocess.run(command, input=json.dumps(tokens), capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def compare(drawn: Drawn, theirs: list[tuple[int, float]], prompt_tokens: int) -> str:
    places = range(1, len(theirs) + 1)
    apart = [abs(drawn.logprobs[at] - theirs[at - 1][1]) for at in places]
    answer = range(prompt_tokens, len(theirs) + 1)
    same = sum(theirs[at - 1][0] == drawn.tokens[at] for at in answer)
    return (
        f"{len(apart)} log-probabilities: largest difference {max(apart):.4f}, mean {np.mean(apart):.4f}; "
        f"most likely token the same at {same} of {len(answer)} places"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--gguf", type=Path, required=True, metavar="FILE")
    parser.add_argument("--llamacpp-python", required=True, metavar="PYTHON")
    parser.add_argument("--prompt", type=int, default=600, metavar="TOKENS")
    parser.add_argument("--output", type=int, default=32, metavar="TOKENS")
    options = parser.parse_args()
    vocabulary = read_config(options.model)["vocab_size"]
    prompt = np.random.default_rng(0).integers(0, vocabulary, options.prompt, np.int32)
    drawn = generate(options.model, prompt, options.output)
    tokens = [*prompt.tolist(), *(drawn.tokens[at] for at in sorted(drawn.tokens) if at >= options.prompt)]
    print(compare(drawn, read_with_llamacpp(options.llamacpp_python, options.gguf, tokens), options.prompt))


if __name__ == "__main__":
    main()
