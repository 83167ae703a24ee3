"""Parts of ``tools.train_eagle`` and ``tools.train_draft``: text, target, training loop, acceptance."""
