"""A load of GuideLLM's on /v1/chat/completions: url, name of the model, directory of its tokenizer.

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
    *("--backend", f"kind=openai_http,target={URL},model={MODEL}"),
    *("--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={COUNT}"),
    *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
    *("--data", f"kind=synthetic_text,prompt_tokens=24,output_tokens={OUTPUT}"),
    *("--output", "kind=json,path=result.json"),
]
subprocess.run([str(Path(sys.executable).with_name("guidellm")), "run", *words], check=True)
(benchmark,) = json.loads(Path("result.json").read_text())["benchmarks"]
done = benchmark["requests"]["successful"]
print(f"answers: {sum(answer['output_tokens'] == OUTPUT for answer in done)} of {COUNT}")
