"""Buffers that live elsewhere. The only room that knows ray, and it loads it when it is asked to."""
