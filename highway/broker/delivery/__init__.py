"""The way out: where readers stand in logs, and the bytes that they get."""

__all__: list[str] = []
