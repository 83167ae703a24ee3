"""Quantising weights: bf16, fp16 and fp32 matrices to codes and scales, while they are packed or for a new
checkpoint."""
