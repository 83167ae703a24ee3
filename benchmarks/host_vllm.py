"""vLLM's server with a model that costs next to nothing, to measure its host beside ours."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

START_S = 300.0
MAKE = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder = sys.argv[1]
vocab = len(PreTrainedTokenizerFast.from_pretrained(folder))
torch.manual_seed(0)
config = LlamaConfig(vocab_size=vocab, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=1, num_key_value_heads=1, head_dim=64, max_position_embeddings=4096, dtype="bfloat16")
torch.set_default_dtype(torch.bfloat16)
LlamaForCausalLM(config).save_pretrained(folder)
"""


class VllmServer:
    """`python -m vllm.entrypoints.openai.api_server` on loopback; a context manager that stops it."""

    name = "vLLM"

    def __init__(self, python: str, model: str | None) -> None:
        self._python = python
        self._folder = Path(tempfile.mkdtemp())
        source = Path(model) if model else embedded()
        for file in source.glob("*"):
            if file.name.startswith(("tokenizer", "chat_template")):
                shutil.copy(file, self._folder / file.name)
        subprocess.run([python, "-c", MAKE, str(self._folder)], check=True, capture_output=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._folder)),
                *("--host", "127.0.0.1", "--port", str(self.port), "--max-num-seqs", "256"),
                *("--max-model-len", "2048", "--dtype", "bfloat16", "--disable-uvicorn-access-log"),
            ],
            stdout=self._log,
            stderr=self._log,
            env={
                **os.environ,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
            },
        )
        self.pid = self._process.pid
        self._wait()

    def _wait(self) -> None:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
            except (urllib.error.URLError, OSError):
                time.sleep(1.0)
            else:
                return
        log = (self._folder / "log").read_text(errors="replace")
        self.stop()
        raise SystemExit(f"vLLM did not start: {log[-2000:]}")

    def __enter__(self) -> VllmServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def embedded() -> Path:
    """Return the folder of the model that Firelane carries."""
    import firelane

    folder = Path(firelane.__file__).parent / "models" / "embedded"
    assert json.loads((folder / "config.json").read_text())
    return folder
