"""GGUF files (github.com/ggml-org/ggml, docs/gguf.md) as checkpoints."""
