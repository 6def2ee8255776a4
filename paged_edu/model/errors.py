"""ModelLoadError: what every loading problem raises. In a file of its own, so that whoever only names it does not import torch."""


class ModelLoadError(ValueError):
    """A model can't be loaded; the message names the file, key or tensor and what was expected of it."""
