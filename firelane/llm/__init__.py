"""Firelane in your own process: load a model, generate, close. The same engine as the server's, without HTTP.

    with LLM("Qwen/Qwen3-0.6B") as llm:
        for output in llm.generate(["def fib(n):"], SamplingParams(max_tokens=64)):
            print(output.outputs[0].text)

Names and meanings are those of vLLM's offline API where both have them.
"""

from firelane.llm.llm import LLM
from firelane.llm.outputs import CompletionOutput, Logprob, RequestOutput
from firelane.llm.params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams"]
