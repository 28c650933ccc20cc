"""The one journal of the whole broker: its format, its thread, its files, and reading it back."""

__all__: list[str] = []
