"""Records of a log as a file that other programs read: JSON Lines, CSV, Parquet."""

__all__: list[str] = []
