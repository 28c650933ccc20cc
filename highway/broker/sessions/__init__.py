"""What outlives a connection: subscriptions, positions and unacknowledged messages, in memory and durable."""

__all__: list[str] = []
