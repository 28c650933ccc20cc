"""What the sections of the configuration file are made of: their base, and values that are written with a unit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import core_schema

from highway.config.units import (
    UNLIMITED,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

    from highway.broker.token_bucket import Rate

__all__ = ["ByteRate", "Duration", "MessageRate", "Section", "Size", "Speed"]

T = TypeVar("T")


class _Unit(ABC, Generic[T]):
    """Annotation of a value that is written with a unit: its bounds as text, and whether `unlimited` (None) is one."""

    pattern: ClassVar[str]

    def __init__(self, minimum: str, maximum: str, *, unlimited: bool = False) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._unlimited = unlimited

    def validate(self, value: object) -> T | None:
        """The number of `value`; ValueError for one without a unit or out of bounds."""
        if self._unlimited and value == UNLIMITED:
            return None
        try:
            number = self.parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {UNLIMITED}" if self._unlimited else str(error)) from None
        measure = self.measure
        if not measure(self.parse(self._minimum)) <= measure(number) <= measure(self.parse(self._maximum)):
            bound = f"or {UNLIMITED}" if self._unlimited else ""
            raise ValueError(f"{value} is out of range: {self._minimum} to {self._maximum} {bound}".rstrip())
        return number

    def write(self, value: T | None) -> str:
        """`value` as it stands in a file."""
        return UNLIMITED if value is None else self.render(value)

    @abstractmethod
    def parse(self, value: object) -> T:
        """The number in `value`; ValueError where there is none with a unit."""

    @abstractmethod
    def measure(self, value: T) -> float:
        """What values are compared by."""

    @abstractmethod
    def render(self, value: T) -> str:
        """`value` with the unit that suits it."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        pattern = f"^({self.pattern}|{UNLIMITED})$" if self._unlimited else f"^{self.pattern}$"
        return {"type": "string", "pattern": pattern}


class Duration(_Unit[int]):
    """An int of milliseconds, written as `100ms`, `30s`, `1h30m`, `7d`."""

    pattern = "([0-9]{1,12}(ms|[smhd]))+"

    def parse(self, value: object) -> int:
        return parse_duration(value)

    def measure(self, value: int) -> float:
        return value

    def render(self, value: int) -> str:
        return format_duration(value)


class Size(_Unit[int]):
    """An int of bytes, written as `64MiB` or `10GB`."""

    pattern = "[0-9]{1,19} ?(B|[kMGT]B|[KMGT]iB)"

    def parse(self, value: object) -> int:
        return parse_size(value)

    def measure(self, value: int) -> float:
        return value

    def render(self, value: int) -> str:
        return format_size(value)


class MessageRate(_Unit["Rate"]):
    """A rate of something that is counted, written as `1000/s`, `300/m` or `10/h`."""

    pattern = "[0-9]{1,12}/[smh]"

    def parse(self, value: object) -> Rate:
        return parse_rate(value)

    def measure(self, value: Rate) -> float:
        return value.amount / value.seconds

    def render(self, value: Rate) -> str:
        return format_rate(value)


class ByteRate(MessageRate):
    """A rate of bytes, written as `64KiB/s` or `1GiB/h`."""

    pattern = "[0-9]{1,19} ?(B|[kMGT]B|[KMGT]iB)/[smh]"

    def parse(self, value: object) -> Rate:
        return parse_rate(value, of_bytes=True)

    def render(self, value: Rate) -> str:
        return format_rate(value, of_bytes=True)


class Speed(_Unit[int]):
    """An int of bytes a second, written as `4MiB/s`."""

    pattern = ByteRate.pattern

    def parse(self, value: object) -> int:
        rate = parse_rate(value, of_bytes=True)
        return rate.amount // rate.seconds

    def measure(self, value: int) -> float:
        return value

    def render(self, value: int) -> str:
        return f"{format_size(value)}/s"


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # Keys that are documented for Highway and not supported by this version.
    LATER: ClassVar[frozenset[str]] = frozenset()
