"""Targets: a module each, whose TARGET says what it runs. fuzz/corpus/NAME holds its inputs."""
