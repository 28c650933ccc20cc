"""Where the journal has to be read from, and the key-value state that it need not hold any more."""

__all__: list[str] = []
