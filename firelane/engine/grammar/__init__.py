"""Structured output: grammars compiled off the step loop, and masks that follow each sequence's tokens.

Life of a grammar: a request brings its text -> GrammarQueue (engine's thread) finds it compiled, or has it
compiled by GrammarCompiler (one thread of its own) -> the request joins the queue of sequences with a
Constraint -> its first slot gives it a matcher of its own -> GrammarMasks advances it after each of its
tokens, writes the mask of the next one, and says when the text is complete.
"""
