"""Drafts by a head: a small model that goes on from what the served model has computed of each token."""
