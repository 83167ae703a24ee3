"""Writes the tables of options into the docs, from the fields that declare them.

    python scripts/option_tables.py

A page has them between the lines `<!-- options: SET -->` and `<!-- end of options -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

from firelane.options import Declared, Group, OptionSet
from firelane.server.options.sets import ENGINE_COMMAND, SERVE

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"serving.md": {"serve": SERVE}, "cluster.md": {"engine": ENGINE_COMMAND}}
BLOCK = r"(<!-- options: {name} -->\n).*?(<!-- end of options -->)"


def main() -> None:
    for page in PAGES:
        path = DOCS / page
        path.write_text(with_tables(page, path.read_text()))


def with_tables(page: str, text: str) -> str:
    """The page's text with tables of the options that there are."""
    for name, options in PAGES[page].items():
        tables = _tables(page, options, is_first=page == "serving.md")
        text, count = re.subn(
            BLOCK.format(name=name), lambda match, own=tables: match[1] + own + match[2], text, flags=re.S
        )
        assert count == 1, f"{page} has {count} places for the options of {name}"
    return text


def _tables(page: str, options: OptionSet, *, is_first: bool) -> str:
    """A table for each group. is_first: all options are told; on others those that `serve` has are not."""
    known = set() if is_first else set(SERVE.by_key)
    tables = (
        _table(page, group, own)
        for group, members in options.by_group()
        if (own := [one for one in members if one.key not in known or group not in SERVE.groups])
    )
    return "\n" + "\n".join(tables) + "\n"


def _table(page: str, group: Group, members: list[Declared]) -> str:
    where = f"`--help={group.name}`; in a file: `[{group.table}]`"
    rows = [f"| {_name(one)} | {one.default_text} | {_meaning(page, one)} |" for one in members]
    title = f"**{group.title[0].upper()}{group.title[1:]}** ({where})"
    return "\n".join([title, "", "| option | default | meaning |", "|---|---|---|", *rows, ""])


def _name(one: Declared) -> str:
    if one.option.file:
        return f"`{one.key}` (file)"
    value = "" if one.kind is bool else f" {one.metavar.strip('{}').replace(',', '|')}".replace("|", "\\|")
    both = f", `--no-{one.flag.removeprefix('--')}`" if one.option.both else ""
    return f"`{one.flag}{value}`{both}"


def _meaning(page: str, one: Declared) -> str:
    more = f": [more]({one.option.see.removeprefix(page)})" if one.option.see else ""
    return one.option.help.replace("|", "\\|") + more


if __name__ == "__main__":
    main()
