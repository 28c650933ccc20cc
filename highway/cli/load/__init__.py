"""Load for benchmarks: publishers and readers over blocking sockets, with packets that are encoded beforehand.

A generator has to cost less than the broker it measures: no library, no task, and no work per message where the bytes
of a whole window can be counted.
"""

__all__: list[str] = []
