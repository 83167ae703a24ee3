"""The tokenizer in a GGUF file's metadata, as tokenizer.json and the files beside it."""
