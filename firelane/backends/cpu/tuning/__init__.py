"""The autotuner: which form of its weights makes each product fastest on this machine, measured in steps.

projections.py  the distinct products of a program
trial.py        small programs that hold each of them in every form
synthetic.py    their weights, made up and packed for real
measure.py      their steps, timed
runner.py       trials compiled and timed, again where the machine was not quiet
table.py        what was measured, and what follows from it
store.py        tables kept from one start to the next
tuner.py        the whole way
"""
