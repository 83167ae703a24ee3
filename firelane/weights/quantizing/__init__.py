"""Codes and scales of bf16, fp16 and fp32 matrices: which matrices get them, and how they are chosen."""
