"""Checkpoints of quantised weights in safetensors: fp8, integers, AWQ, GPTQ, MXFP4, NVFP4."""
