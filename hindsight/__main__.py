"""python -m hindsight, and the hindsight command."""

from __future__ import annotations

import sys

from hindsight.cli import main

if __name__ == "__main__":
    sys.exit(main())
