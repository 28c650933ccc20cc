"""One network connection after the other: CONNECT, takeover, packets, the end, and the will."""

__all__: list[str] = []
