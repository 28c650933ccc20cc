"""From a dotted name and options to a plugin of amqtt's kind, in a context that says what isn't here."""

from __future__ import annotations

import logging
import warnings
from dataclasses import is_dataclass
from enum import Enum
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin
from amqtt.utils import import_string
from dacite import Config as Conversion, DaciteError, WrongTypeError, from_dict

from highway.config.access import reveal_options
from highway.errors import HighwayError

if TYPE_CHECKING:
    import asyncio

    from highway.config.models import PluginSettings

__all__ = ["PluginError", "load_plugin"]


class PluginError(HighwayError):
    """A plugin can't be used: where it is named, and why."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")


class _NoBroker:
    """Stands where amqtt's context has amqtt's broker: whatever is asked of it, it isn't here."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(f"{name} is amqtt's broker's, and this is another one")


def load_plugin(settings: PluginSettings, loop: asyncio.AbstractEventLoop) -> BasePlugin[Any]:
    """The plugin that `settings` name, made as amqtt makes it. PluginError says where, and what is wrong."""
    where = f"{settings.where}: auth.plugins.{settings.name}" if settings.where else f"auth.plugins.{settings.name}"
    try:
        found = import_string(settings.name)
    except BaseException as error:  # some modules call sys.exit where something is missing
        raise PluginError(where, f"can't be imported: {_cause(error)}") from error
    if not (isinstance(found, type) and issubclass(found, BasePlugin)):
        raise PluginError(where, "is no plugin: a subclass of amqtt.plugins.base.BasePlugin is wanted")
    context = BrokerContext(_NoBroker())
    context.loop = loop
    context.logger = logging.getLogger(f"highway.plugins.{found.__name__}")
    options = cast("Any", found).Config
    if not is_dataclass(options):
        raise PluginError(where, "its Config is no dataclass")
    try:
        # Words of YAML for paths and enumerations; for all else the types are what the plugin says.
        conversion = Conversion(strict=True, cast=[Enum, Path])
        context.config = from_dict(cast("type[Any]", options), reveal_options(settings.options), conversion)
    except (DaciteError, TypeError, ValueError) as error:
        raise PluginError(where, f"its options are wrong: {_about_options(error)}") from None
    try:
        with warnings.catch_warnings(action="ignore"):  # of what amqtt means to give up
            plugin = found(context)
    except BaseException as error:
        raise PluginError(where, f"can't be made: {_cause(error)}") from error
    for kind, method in ((BaseAuthPlugin, "authenticate"), (BaseTopicPlugin, "topic_filtering")):
        if isinstance(plugin, kind) and not iscoroutinefunction(getattr(plugin, method)):
            raise PluginError(where, f"its {method} is no coroutine")
    return cast("BasePlugin[Any]", plugin)


def _cause(error: BaseException) -> str:
    """What is behind an error: amqtt wraps the one that says what is missing."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _about_options(error: Exception) -> str:
    """The error without the values, among which may be secrets."""
    if isinstance(error, WrongTypeError):
        return f"{error.field_path}: {getattr(error.field_type, '__name__', error.field_type)} is wanted"
    return str(error) if isinstance(error, DaciteError) else type(error).__name__
