"""The cost of rounding activations to eight bits on GGUF files, beside that of llama.cpp's own rounding.

    activation_accuracy.py FILE ... --text FILE ... [--tokens 2048] [--llamacpp-python PYTHON]

For each FILE: Firelane with int8 activations against Firelane with bf16 products; and llama.cpp with the file
against llama.cpp with the same weights decoded to float32. KL divergence in nats a token over the whole
vocabulary, share of places at which the most likely token is the same, perplexities of both. The text is read
in windows of 512 tokens. PYTHON is an interpreter that has llama-cpp-python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from firelane import env
from firelane.bench.divergence import WINDOW, divergence
from firelane.bench.table import format_table
from firelane.engine_config import EngineConfig
from firelane.sources.resolve import resolve
from firelane.text.tokens.tokenizer import load_tokenizer
from firelane.text.tokens.tokenizer_source import tokenizer_directory

LLAMACPP = """
import ctypes, json, os, sys, llama_cpp as L, numpy as np
L.llama_backend_init(); quiet = L.llama_log_callback(lambda *_: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
windows = json.loads(sys.stdin.read())
models = [L.llama_model_load_from_file(f.encode(), L.llama_model_default_params()) for f in sys.argv[1:]]
width = L.llama_vocab_n_tokens(L.llama_model_get_vocab(models[0]))
def logs(model, tokens):
    params = L.llama_context_default_params(); params.n_ctx = params.n_batch = 512
    params.n_threads = params.n_threads_batch = os.cpu_count()
    context = L.llama_init_from_model(model, params)
    batch = L.llama_batch_init(len(tokens), 0, 1); batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i] = token; batch.pos[i] = i; batch.n_seq_id[i] = 1; batch.seq_id[i][0] = 0
        batch.logits[i] = 1
    assert L.llama_decode(context, batch) == 0
    for i in range(len(tokens) - 1):
        x = np.ctypeslib.as_array(L.llama_get_logits_ith(context, i), (width,)).astype(np.float64)
        yield x - x.max() - np.log(np.exp(x - x.max()).sum())
    L.llama_free(context)
found = []
for tokens in windows:
    for at, (a, b) in enumerate(zip(logs(models[0], tokens), logs(models[1], tokens))):
        kl = (np.exp(a) * (a - b)).sum()
        found.append((kl, a.argmax() == b.argmax(), a[tokens[at + 1]], b[tokens[at + 1]]))
kl, top, first, second = np.mean(found, axis=0)
print(json.dumps([kl, top, np.exp(-first), np.exp(-second)]))
"""
"""Prints of two GGUF files: mean KL divergence, share of equal most likely tokens, both perplexities."""


def decode(source: Path, file: Path) -> None:
    """Write the GGUF file with all tensors in float32."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(file, reader.fields["general.architecture"].contents())
    left_out = {"general.architecture", "general.file_type", "general.quantization_version"}
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in left_out:
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=of)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        plain = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def of_firelane(model: Path, text: str, tokens: int) -> list[float]:
    common: dict[str, Any] = {"max_num_seqs": 1, "kv_cache_bytes": 1 << 30, "backend": "cpu"}
    common |= {"cache_dir": env.read().cache_dir, "prefix_cache": False, "model_dir": model}
    plain = EngineConfig(activation_dtype="bf16", **common)
    rounded = EngineConfig(activation_dtype="int8", **common)
    found = divergence(plain, rounded, text, most_tokens=tokens)
    return [found.mean_kl, found.top1, *found.perplexities]


def of_llamacpp(file: Path, model: Path, text: str, tokens: int, python: str) -> list[float]:
    ids = load_tokenizer(tokenizer_directory(model, env.read().cache_dir)).encode(text)[:tokens]
    windows = [ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)]
    with tempfile.TemporaryDirectory() as scratch:
        decoded = Path(scratch, "f32.gguf")
        decode(file, decoded)
        command = [python, "-c", LLAMACPP, str(decoded), str(file)]
        done = subprocess.run(
            command, input=json.dumps(windows), stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(done.stdout)


def row(name: str, engine: str, found: list[float]) -> list[str]:
    kl, top1, *perplexities = found
    return [name, engine, f"{kl:.5f}", f"{top1:.1%}", *(f"{p:.3f}" for p in perplexities)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", nargs="+")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--llamacpp-python", metavar="PYTHON")
    arguments = parser.parse_args()
    text = "\n".join(path.read_text() for path in arguments.text)
    rows: list[list[str]] = []
    for file in arguments.files:
        model = resolve(str(file))
        rows.append(row(file.stem, "Firelane", of_firelane(model, text, arguments.tokens)))
        if arguments.llamacpp_python:
            found = of_llamacpp(file, model, text, arguments.tokens, arguments.llamacpp_python)
            rows.append(row(file.stem, "llama.cpp", found))
    header = ["file", "engine", "KL divergence", "most likely the same", "perplexity", "rounded"]
    print(format_table(header, rows))


if __name__ == "__main__":
    main()
