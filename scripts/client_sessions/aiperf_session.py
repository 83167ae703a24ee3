"""A load of AIPerf's on /v1/chat/completions: url, name of the model, directory of its tokenizer.

Prints how many answers came whole, with all their tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

URL, MODEL, TOKENIZER = sys.argv[1:]
COUNT, OUTPUT = 6, 8
words = [
    *("--model", MODEL, "--tokenizer", TOKENIZER, "--url", URL, "--endpoint-type", "chat", "--streaming"),
    *("--concurrency", "2", "--request-count", str(COUNT), "--synthetic-input-tokens-mean", "24"),
    *("--output-tokens-mean", str(OUTPUT), "--extra-inputs", "ignore_eos:true", "--use-server-token-count"),
    *("--artifact-dir", "found", "--ui", "none"),
]
subprocess.run([str(Path(sys.executable).with_name("aiperf")), "profile", *words], check=True)
found = next(Path("found").rglob("profile_export*.jsonl"))
metrics = [json.loads(line)["metrics"] for line in found.read_text().splitlines()]
whole = sum(one["output_sequence_length"]["value"] == OUTPUT for one in metrics)
print(f"answers: {whole} of {COUNT}")
