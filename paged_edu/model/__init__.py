"""Models, loading and training."""
