"""Which topic filters there are, whom a topic name reaches, and the groups of shared subscriptions."""

__all__: list[str] = []
