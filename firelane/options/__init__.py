"""Options that fields of configs declare: the command line, keys of files, checks, help and the tables of the
docs are made of them.

A field says all of its option in its annotation, where the config is defined:

    max_num_seqs: Annotated[int, Option("sequences that run at the same time", ENGINE, least=1)] = 256

`add_options` puts the options of configs on the command line of a command, `read_table` reads them from a
table of a TOML file, and `fields` gives what was given to the config's constructor. A config calls `check`
when it is made, so that a value from Python is checked as one from the command line is. Modules of configs do
not import annotations from __future__: as text, each would be compiled at the start of a server.
"""

from __future__ import annotations

from firelane.options.command_line import add_options
from firelane.options.declared import Declared, Values, check, declared, fields
from firelane.options.option import Group, Option, OptionError, number, within
from firelane.options.option_set import OptionSet, read_table

__all__ = [
    "Declared",
    "Group",
    "Option",
    "OptionError",
    "OptionSet",
    "Values",
    "add_options",
    "check",
    "declared",
    "fields",
    "number",
    "read_table",
    "within",
]
