"""KV cache events for routers outside: which blocks each engine has, published over ZeroMQ in vLLM's form."""
