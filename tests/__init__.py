"""A package, so that `python -m tests...` finds it also where a dependency has installed a `tests` of its own."""

from __future__ import annotations

__all__: list[str] = []
