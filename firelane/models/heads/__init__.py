"""Small models that draft tokens from what a larger one, their target, has computed of the same text."""
