"""GGUF metadata as config.json, and GGUF names of tensors as those that families know."""
