"""The command line: one file for each command or group. It parses and prints; what it shows is worked out below it."""

__all__: list[str] = []
