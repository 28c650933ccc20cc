"""What the broker knows and decides: sessions, subscriptions, routing, replay. No sockets and no asyncio here."""

__all__: list[str] = []
