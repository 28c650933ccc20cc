"""Everything that touches a disk or waits for one: the seam, the directory, descriptors, the pool, the reserve."""

__all__: list[str] = []
