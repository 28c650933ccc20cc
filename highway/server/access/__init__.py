"""Who is let in, and what plugins say of it: everything about access that takes time."""

__all__: list[str] = []
