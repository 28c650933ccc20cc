"""`python -m highway`: the same as the command `highway`."""

from __future__ import annotations

from highway.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
