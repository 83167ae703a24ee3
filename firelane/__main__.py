"""`python -m firelane` is the `firelane` command."""

from __future__ import annotations

import sys

from firelane.cli import main

if __name__ == "__main__":
    sys.exit(main())
