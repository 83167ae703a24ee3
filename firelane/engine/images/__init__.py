"""Images in prompts: their encoder, their rows, and their positions."""
