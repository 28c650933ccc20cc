"""Lines of pipes and files, whole whatever the pieces they come in."""

from __future__ import annotations

import asyncio
import os

import pytest

from highway.cli.lines import read_lines


async def collect(fd):
    return [line async for line in read_lines(fd)]


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"", []), (b"a", [b"a"]), (b"a\n", [b"a"]), (b"a\n\nb", [b"a", b"", b"b"]), (b"\xff\x00\n", [b"\xff\x00"])],
)
def test_regular_file(data, lines, tmp_path):
    (tmp_path / "f").write_bytes(data)
    with (tmp_path / "f").open("rb") as file:
        assert asyncio.run(collect(file.fileno())) == lines


def test_pipe_that_is_filled_piece_by_piece():
    async def feed_and_read():
        reader, writer = os.pipe()
        found = read_lines(reader)
        try:
            for piece, line in ((b"one\ntw", b"one"), (b"o\n", b"two"), (b"x" * 100_000 + b"\n", b"x" * 100_000)):
                loop = asyncio.get_running_loop()
                written = loop.run_in_executor(None, os.write, writer, piece)
                assert await anext(found) == line
                await written
            os.close(writer)
            assert [line async for line in found] == []
        finally:
            os.close(reader)

    asyncio.run(feed_and_read())


def test_line_can_be_waited_for_without_blocking_the_loop():
    async def wait_and_give_up():
        reader, writer = os.pipe()
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(read_lines(reader)), 0.01)
        finally:
            os.close(reader)
            os.close(writer)

    asyncio.run(wait_and_give_up())
