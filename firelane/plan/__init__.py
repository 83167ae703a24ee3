"""Plans: what a model takes of devices that are described, and how fast it runs there, from its config alone.

A composition root, as doctor and bench are: it reads the model's Program, the shares of its ranks and the
description of a device, and adds up.
"""
