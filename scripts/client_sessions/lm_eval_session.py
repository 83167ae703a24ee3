"""Two tasks of lm-eval: url, name of the model, directory of its tokenizer.

Which of two endings is likelier, by /v1/completions; and what is answered, by /v1/chat/completions. Prints
how many of the likelier ones are right, and how many answers came.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

URL, MODEL, TOKENIZER = sys.argv[1:]
ENDINGS = [
    ("def add(a, b):\n    return a +", " b", " zebra"),
    ("for i in", " range", " Tuesday"),
    ("Once upon a", " time", " xylophone"),
    ("import", " os", " whale"),
]
CHOICE = """task: endings
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
ANSWER = """task: answers
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: ""
generation_kwargs: {{until: ["never"], max_gen_toks: 8, temperature: 0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


def write_tasks(folder: Path) -> TaskManager:
    data = folder / "endings.jsonl"
    lines = [json.dumps({"text": text, "choices": [good, bad]}) for text, good, bad in ENDINGS]
    data.write_text("\n".join(lines))
    for name, text in (("choice", CHOICE), ("answer", ANSWER)):
        (folder / f"{name}.yaml").write_text(text.format(file=data))
    return TaskManager(include_path=str(folder), include_defaults=False)


def run(model: str, path: str, task: str, tasks: TaskManager, **options: Any) -> dict[str, Any]:
    arguments = {"model": MODEL, "base_url": f"{URL}{path}", "num_concurrent": 2, "max_retries": 1, **options}
    found = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=[task], task_manager=tasks, log_samples=True,
        apply_chat_template=model == "local-chat-completions", bootstrap_iters=0,
    )  # fmt: skip
    assert found is not None
    return found


with tempfile.TemporaryDirectory() as name:
    tasks = write_tasks(Path(name))
    options = {"tokenizer_backend": "remote", "max_length": 2048}
    judged = run("local-completions", "/v1/completions", "endings", tasks, **options)
    likelier = round(judged["results"]["endings"]["acc,none"] * len(ENDINGS))
    told = run("local-chat-completions", "/v1/chat/completions", "answers", tasks)
    answers = [sample["resps"][0][0] for sample in told["samples"]["answers"]]
print(answers)
print(f"right: {likelier + sum(map(bool, answers))} of {2 * len(ENDINGS)}")
