"""The files of a log: records, frames, segments and their indexes, byte by byte."""

__all__: list[str] = []
