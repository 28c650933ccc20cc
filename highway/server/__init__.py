"""The process: listeners, connections, signals. asyncio lives here and nowhere below."""

__all__: list[str] = []
