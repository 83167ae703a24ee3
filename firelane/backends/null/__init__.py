"""The null backend: the same contract without a model, to test and measure all that surrounds one."""

from firelane.backends.null.executor import NullExecutor, describe, load

__all__ = ["NullExecutor", "describe", "load"]
