"""What `status`, `topics` and `sessions` share: finding the running broker, and asking it over its admin socket."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highway.cli.exits import CommandError, Exit
from highway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ask", "broker_options", "json_option"]

# The name that the server gives its socket; the server itself is not imported for it, as it brings the whole broker.
ADMIN_SOCKET = "admin.sock"
DEFAULT_DATA_DIR = Path("highway-data")
ANSWER_TIMEOUT_S = 30.0
_NAMES_SHOWN = 10
_WHERE = "-c FILE or --data-dir says where one does"

_EXITS = {400: Exit.NOT_FOUND, 403: Exit.REFUSED, 404: Exit.NOT_FOUND, 409: Exit.REFUSED}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON: one object, or one on each line.")


def broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options that name a broker, and pass its data directory as `data_dir`."""

    @click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="The broker's configuration.")
    @click.option(
        "--data-dir", type=click.Path(path_type=Path), help="The broker's data directory.  [default: ./highway-data]"
    )
    @functools.wraps(command)
    def with_broker(*args: Any, config_file: Path | None, data_dir: Path | None, **options: Any) -> Any:
        return command(*args, data_dir=_find(config_file, data_dir), **options)

    return with_broker


def _find(config_file: Path | None, data_dir: Path | None) -> Path:
    if data_dir is not None:
        return data_dir
    if config_file is None and "HIGHWAY__DATA_DIR" not in os.environ:
        return DEFAULT_DATA_DIR
    from highway.config.loading import find_data_dir  # noqa: PLC0415  pydantic takes longer than the question

    return find_data_dir(config_file)


def ask(data_dir: Path, method: str, path: str, **query: str) -> Any:
    """The answer of the broker on `data_dir`: JSON, a list of the lines of JSON Lines, None for one without a body.

    CommandError: nobody is there (1), what was asked for isn't (3), or it is refused, or we may not ask (6).
    ConfigError: the broker finds its configuration wrong.
    """
    with _socket_path(data_dir) as socket_path:
        status, body = asyncio.run(_request(socket_path, method, path, query))
    if status < 400:
        return body
    if not isinstance(body, dict):
        raise CommandError(str(body))
    if "problems" in body:
        raise ConfigError(body["problems"])
    raise CommandError(_sentence(body), _EXITS.get(status, Exit.FAILURE))


def _sentence(problem: dict[str, Any]) -> str:
    """What a problem says, and where a name is wrong the first of those that are right."""
    detail, logs = str(problem.get("detail", problem)), problem.get("logs")
    if not logs:
        return detail
    more = f" and {len(logs) - _NAMES_SHOWN:,} more" if len(logs) > _NAMES_SHOWN else ""
    return f"{detail}; there are {', '.join(logs[:_NAMES_SHOWN])}{more}"


@contextmanager
def _socket_path(data_dir: Path) -> Iterator[str]:
    """A path of the socket in `data_dir`: through the descriptor of the folder, as it may have 107 bytes only."""
    try:
        folder = os.open(data_dir, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise CommandError(f"no broker runs on {data_dir}: {error.strerror}; {_WHERE}") from error
    try:
        yield f"/proc/self/fd/{folder}/{ADMIN_SOCKET}"
    except PermissionError as error:
        raise CommandError(
            f"{data_dir / ADMIN_SOCKET} is the broker's user's alone: {error.strerror}", Exit.REFUSED
        ) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise CommandError(f"no broker runs on {data_dir}; {_WHERE}") from error
    except TimeoutError as error:
        raise CommandError(f"no answer within {ANSWER_TIMEOUT_S:g} s", Exit.TIME_OUT) from error
    except OSError as error:
        raise CommandError(f"the broker on {data_dir} went away: {error}") from error
    finally:
        os.close(folder)


async def _request(socket_path: str, method: str, path: str, query: dict[str, str]) -> tuple[int, Any]:
    """Status and body of one request; OSError if the broker can't be talked to."""
    import aiohttp  # noqa: PLC0415  --help shouldn't wait for it
    from yarl import URL  # noqa: PLC0415

    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    connector = aiohttp.UnixConnector(socket_path)
    url = URL(f"http://localhost/api/v1/{path}", encoded=True).with_query(query)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, url) as response,
        ):
            if response.status == HTTPStatus.NO_CONTENT:
                return response.status, None
            if response.content_type == "application/jsonl":
                return response.status, [json.loads(line) async for line in response.content]
            return response.status, await response.json(content_type=None)
    except aiohttp.ClientConnectorError as error:
        raise error.os_error from error
    except aiohttp.ClientConnectionError as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
