"""The way in: from a topic name to its log, what a publisher asked for, and retained messages."""

__all__: list[str] = []
