"""`python -m ebbtide`: the command `ebbtide`, also where its script is not on the path."""

from __future__ import annotations

import sys

from ebbtide.cli import main

if __name__ == "__main__":
    sys.exit(main())
