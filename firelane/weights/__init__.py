"""From a model's name to packed weights in memory: sources, checkpoints, packed formats, the plan and the
packed cache.
"""
