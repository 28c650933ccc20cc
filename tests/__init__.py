"""A package by name: some clients install a `tests` of their own, which would be found instead of a bare folder."""
