"""Speculative decoding: a proposer drafts the next tokens of a sequence, and one step verifies all of them.

A draft never changes an answer. A drawn token depends on the seed, the position and the logits alone, and the
logits of a row do not depend on its batch: the step draws at each drafted position, and the tokens up to the
first one that differs from the draft are those that plain decoding draws.
"""
