"""The process of an engine's NIXL agent, which reads memory of other engines over whatever network UCX finds
(github.com/ai-dynamo/nixl): a fault of NIXL or of a driver ends that process, never the engine.

This package imports neither NumPy nor NIXL before the process has given up its rights.
"""
