"""Triton kernels and the functions that make launches of them; one file an op or a stage of the step.

House rules of these files: reductions and sums in float32; tl.dot with input_precision="ieee"; offsets into
the KV cache and into matrices in int64; no autotuning and no atomics that add floats (a result must not
depend on timing or on what else is in the batch); only integer inline assembly, which the test interpreter
can run.
"""
