"""Firelane engines as workers of NVIDIA Dynamo.

`requests` and `chunks` translate between Dynamo's requests and Firelane's frames, `local_engine` owns the
engine process, `kv_events` and `snapshots` tell the router of its cache and its load. `worker` is the engine
as Dynamo sees it: the one module that imports Dynamo, with `options`.
"""
