"""Ops that keep a state of each sequence from token to token."""
