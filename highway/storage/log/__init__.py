"""One log: its offsets, its tail in memory, its readers, its writer and what it deletes."""

__all__: list[str] = []
