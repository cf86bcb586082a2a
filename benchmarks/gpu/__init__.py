"""The table for a GPU: ``python -m benchmarks.gpu``."""
