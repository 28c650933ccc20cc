"""`python -m highway`: the same as the `highway` command."""

from highway.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
