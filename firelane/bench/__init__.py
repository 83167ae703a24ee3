"""Benchmarks: each prints one table, held against a limit measured in the same run where there is one."""
