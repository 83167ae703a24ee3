"""Write the embedded model's training text as files, for tools that take text of any kind.

Run from the repository's root: ``python -m tools.embedded.write_text --out build/text``. Below it stand
``train`` and ``held_out``, split as the embedded model's own training splits them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.embedded.corpus import Document, chats, load_corpus

CHATS_A_FILE = 100


def main() -> None:
    """Read the corpus and write both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=7, help="of the split; the embedded model's is 7")
    arguments = parser.parse_args()
    corpus = load_corpus(arguments.seed)
    write_part(arguments.out / "train", corpus.train, arguments.seed)
    write_part(arguments.out / "held_out", corpus.validation, arguments.seed)


def write_part(directory: Path, documents: tuple[Document, ...], seed: int) -> None:
    """Write the files as ``code/PATH``, and the chats made from them as ``chats/NUMBER.txt``."""
    for document in documents:
        _write(directory / "code" / document.path, document.text)
    made = chats(documents, seed)
    for start in range(0, len(made), CHATS_A_FILE):
        _write(directory / "chats" / f"{start:06}.txt", "".join(made[start : start + CHATS_A_FILE]))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
