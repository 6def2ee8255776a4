"""Attention over a paged KV cache: the cache tensors, what a step tells the layers, and one file for each backend (Paper §4.1, §5.1)."""
