"""`load_settings`: file, conf.d/, environment and command line -> `Settings`, or one ConfigError with every problem.

What is later in that list wins. Nothing here has an effect outside: a configuration can be read to be looked at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from highway.config.access import read_access, read_http_token
from highway.config.conversion import to_settings
from highway.config.digests import digest_of, watched_files
from highway.config.drop_ins import FOLDER, drop_ins, lay_over
from highway.config.environment import apply_environment
from highway.config.explain import add_model_problems
from highway.config.listeners import check_listeners, parse_address
from highway.config.problems import KeyPath, Mark, Problem, sorted_lines
from highway.config.schema import ConfigFile
from highway.config.topic_entries import check_topic_entries
from highway.config.yaml_loader import Document, load_yaml
from highway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from highway.config.models import Settings

__all__ = ["BUILT_IN", "Overrides", "Source", "find_data_dir", "load_document", "load_settings", "shipped_text"]

# Stands in marks and messages where no file was named.
BUILT_IN = "built-in configuration"


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line sets on top of the file.

    `listen` (HOST:PORT) replaces all listeners; `http` is where the HTTP API is served, and "" means nowhere.
    """

    data_dir: Path | None = None
    listen: str | None = None
    http: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a configuration comes from, so that it can be read again: a file (None: built-in), and the command line."""

    path: Path | None = None
    overrides: Overrides = field(default_factory=Overrides)

    def load(self, instead: Path | None = None) -> Settings:
        """The settings as the files are now, or those that another file would give. ConfigError as `load_settings`."""
        return load_settings(self.path if instead is None else instead, overrides=self.overrides)

    def __str__(self) -> str:
        return BUILT_IN if self.path is None else str(self.path)


@dataclass(slots=True)
class _Reading:
    """The state of one load."""

    document: Document
    folder: Path  # where relative paths of the file start
    warnings: list[Problem] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)  # that were read, or looked for

    def fail_if_wrong(self) -> None:
        if self.document.problems:
            raise ConfigError(sorted_lines(self.document.problems))


def load_settings(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, overrides: Overrides | None = None
) -> Settings:
    """The settings in the file at `path`, or the built-in ones (loopback, anonymous, the shipped topics).

    Raises ConfigError with every problem that can be found, each as `file:line:column: key.path: what is wrong`.
    """
    return load_document(path, environ=environ, overrides=overrides)[0]


def load_document(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, overrides: Overrides | None = None
) -> tuple[Settings, Document]:
    """The same, and the document that says where each value came from."""
    reading = _read_all(path, environ, overrides or Overrides())
    tree: dict[str, Any] = reading.document.value  # type: ignore[assignment]  # _read_file made sure
    model = ConfigFile()
    try:
        model = ConfigFile.model_validate(tree)
    except ValidationError as error:
        add_model_problems(reading.document, error)
    # These look at the tree and not at the model, so that a fault elsewhere doesn't hide theirs.
    reading.warnings += check_listeners(reading.document, tree, reading.folder)
    reading.warnings += check_topic_entries(reading.document, tree.get("topics"), unmatched=tree.get("unmatched"))
    auth = read_access(reading.document, tree, reading.folder, model.auth)
    token = read_http_token(reading.document, tree, reading.folder)
    reading.fail_if_wrong()
    settings = to_settings(model, reading.document, reading.folder, reading.warnings, auth, token)
    settings = replace(settings, files=tuple(reading.files))
    if settings.watch_ms:
        settings = replace(settings, digest=digest_of(watched_files(settings)))
    return settings, reading.document


def find_data_dir(path: Path | None = None, *, environ: Mapping[str, str] | None = None) -> Path:
    """Where the configuration keeps its data, though it may be wrong in everything else: who looks after a running
    broker has to find it just then.

    ConfigError if the files can't be read so far, or that key is wrong itself.
    """
    reading = _read_all(path, environ, Overrides())
    tree: dict[str, Any] = reading.document.value  # type: ignore[assignment]  # _read_file made sure
    named = tree.get("data_dir", ConfigFile().data_dir)
    is_in_doubt = any(problem.path in ((), ("data_dir",)) for problem in reading.document.problems)
    if is_in_doubt or not isinstance(named, str) or not set(tree) <= set(ConfigFile.model_fields):
        # A fault may hide the key: only a valid configuration says what it is.
        return load_settings(path, environ=environ).data_dir
    return Path(os.path.normpath(reading.folder / named))


def shipped_text(name: str) -> str:
    """The text of a file of config/, from inside the installed package or from the source tree."""
    packaged = resources.files("highway.config") / "shipped" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[2] / "config" / name).read_text(encoding="utf-8")


def _read_all(path: Path | None, environ: Mapping[str, str] | None, overrides: Overrides) -> _Reading:
    """The values of all sources laid over one another, not validated yet."""
    reading = _read_file(path)
    _include_topics(reading, reading.document)
    if path is not None:
        _lay_over_drop_ins(reading, path)
    apply_environment(reading.document, os.environ if environ is None else environ)
    _apply_overrides(reading, overrides)
    _include_topics(reading, reading.document)  # the environment may have named another file
    return reading


def _read_file(path: Path | None) -> _Reading:
    if path is None:
        document = load_yaml(shipped_text("topics.yaml"), "built-in topics", ("topics",))
        document.value = {"topics": document.value, "http": {}}
        document.marks[()] = Mark(BUILT_IN)
        return _Reading(document, Path())
    reading = _Reading(Document(), path.parent)
    text = _read_text(path, Mark(str(path)), (), reading.document, reading.files)
    reading.fail_if_wrong()
    reading.document = load_yaml(text, str(path))
    if not isinstance(reading.document.value, dict):
        if not reading.document.problems:
            reading.document.add((), _no_keys(reading.document.value))
        reading.fail_if_wrong()
    return reading


def _no_keys(value: Any) -> str:
    """What is wrong with a file that holds `value` and no keys."""
    fault = "keys such as `listeners:` are wanted here, not a list or a single value"
    return (
        f"{fault}; the file to check is the one that names this list: `topics: FILE`" if _is_entries(value) else fault
    )


def _is_entries(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, dict) and "topic" in entry for entry in value)


def _lay_over_drop_ins(reading: _Reading, path: Path) -> None:
    """Lay the files of conf.d over the document."""
    document = reading.document
    reading.files.append(path.parent / FOLDER)
    try:
        found = drop_ins(path)
    except OSError as error:
        document.add((), f"can't be read: {error.strerror or error}", Mark(str(path.parent / FOLDER)))
        return
    for file in found:
        faults = len(document.problems)
        text = _read_text(file, Mark(str(file)), (), document, reading.files)
        if len(document.problems) > faults:
            continue
        part = load_yaml(text, str(file))
        if not isinstance(part.value, dict) and not part.problems:
            part.add((), _no_keys(part.value))
        _include_topics(reading, part)
        lay_over(document, part)


def _read_text(path: Path, mark: Mark, key: KeyPath, document: Document, files: list[Path]) -> str:
    """The text of the file at `path`; "" after a problem, which `mark` and `key` place."""
    files.append(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        document.add(key, f"{path} can't be read: {error.strerror or error}", mark)
        return ""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        document.add((), f"byte 0x{data[error.start]:02X} is not UTF-8", Mark(str(path), line, column))
        return ""


def _apply_overrides(reading: _Reading, overrides: Overrides) -> None:
    tree: dict[str, Any] = reading.document.value  # type: ignore[assignment]  # _read_file made sure
    if overrides.data_dir is not None:
        tree["data_dir"] = str(overrides.data_dir.absolute())
        reading.document.marks["data_dir",] = Mark("--data-dir")
    if overrides.listen is not None and (address := _address(reading, "--listen", overrides.listen)):
        reading.document.forget(("listeners",))
        reading.document.marks["listeners",] = reading.document.marks["listeners", "local"] = Mark("--listen")
        tree["listeners"] = {"local": address}
    if overrides.http is None:
        return
    reading.document.forget(("http",))
    tree.pop("http", None)
    if overrides.http and (address := _address(reading, "--http", overrides.http)):
        reading.document.marks["http",] = Mark("--http")
        tree["http"] = address


def _address(reading: _Reading, option: str, text: str) -> dict[str, Any] | None:
    """`bind` and `port` of a HOST:PORT on the command line; None after a problem."""
    address = parse_address(text)
    if address is None:
        reading.document.add((), f"HOST:PORT is wanted, such as 127.0.0.1:1883, not {text!r}", Mark(option))
        return None
    return dict(zip(("bind", "port"), address, strict=True))


def _include_topics(reading: _Reading, document: Document) -> None:
    """Put the list in place of the file name, where `topics` of `document` names a file."""
    tree = document.value
    name = tree.get("topics") if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or not isinstance(name, str):
        return
    path = reading.folder / name
    tree["topics"] = []
    faults = len(document.problems)
    text = _read_text(path, document.mark_of(("topics",)) or Mark(BUILT_IN), ("topics",), document, reading.files)
    if len(document.problems) > faults:
        return
    part = load_yaml(text, str(path), ("topics",))
    document.problems += part.problems
    document.marks |= part.marks
    document.key_marks = {**document.key_marks, **part.key_marks, ("topics",): part.marks["topics",]}
    document.raw |= part.raw
    if isinstance(part.value, list):
        tree["topics"] = part.value
    elif not part.problems:
        document.add(("topics",), "a list of topic entries is wanted in this file (items that begin with '-')")
