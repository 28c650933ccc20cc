"""From what is on a disk after a crash to where everything goes on; what is cut or set aside is kept."""

__all__: list[str] = []
