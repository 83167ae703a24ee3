"""Which config of a product is the fastest on a device: measured once (benchmarks/cuda_tune.py), kept on disk
(store.py), and chosen by config.choose() before any rule. Results never depend on it."""
