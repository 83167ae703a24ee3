"""The fastest config of a product on a device, found by measuring.

firelane/backends/cuda/tuning keeps the table of those on disk, and `choose` of linear_config looks there
before any rule. Results never depend on it.
"""
