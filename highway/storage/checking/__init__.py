"""Looking at a data directory without opening it, and mending what a start could not live with."""

__all__: list[str] = []
