"""Copies of a data directory, taken beside a running broker and brought back."""

__all__: list[str] = []
