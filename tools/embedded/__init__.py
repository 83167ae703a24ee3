"""Builds the model that ships in the package; the command is ``tools.train_embedded``."""
