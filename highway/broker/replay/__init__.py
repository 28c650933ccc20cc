"""Reading from anywhere: `<from>`, the topic filters that are requests, and how fast it may go."""

__all__: list[str] = []
