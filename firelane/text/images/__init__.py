"""Images of conversations: decoded in a process of their own, and put into prompts."""
