"""The house rules, as tests: layers, sizes, names that are exported, and documents that say what the code does."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

from highway import __version__
from highway.cli.main import highway
from highway.config.schema import ConfigFile, LogKeys, Section

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "highway"
MODULES = sorted(PACKAGE.rglob("*.py"))

MAX_FUNCTION_LINES = 70
MAX_MODULE_LINES = 600

# A layer imports layers of lower rank and itself; those of equal rank don't know each other. Rank 0 stands on nothing.
RANKS = {
    "cli": 7,
    "server": 6,
    "bridge": 5,
    "config": 4,
    "broker": 3,
    "mqtt": 2,
    "storage": 2,
    "metrics": 1,
    "clock": 1,
    "log_lines": 1,
    "errors": 0,
}

# What the pure layers must not touch. `socket` and `asyncio` would make the broker's logic depend on a running loop.
FORBIDDEN = {
    "mqtt": {"asyncio", "socket", "selectors", "ssl", "threading"},
    "storage": {"asyncio", "socket", "selectors", "ssl"},
    "broker": {"asyncio", "socket", "selectors", "ssl", "threading"},
    "metrics": {"asyncio", "socket"},
    "clock": {"asyncio", "socket"},
    "log_lines": {"asyncio", "socket"},
    "errors": {"asyncio", "socket"},
}


def name_of(path):
    return str(path.relative_to(ROOT))


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def layer_of(path):
    """The layer of a module; None for `highway` itself and for `python -m highway`."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return None if first in ("__init__", "__main__") else first


def imported_modules(path):
    """Dotted names of everything that a module imports, anywhere in it, in full."""
    package = path.parent.relative_to(ROOT).parts
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = [*package[: len(package) - node.level + 1]] if node.level else []
            base = ".".join([*parts, *(node.module or "").split(".")]).strip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer_faults(layer, imported):
    """What is wrong with a module of `layer` importing `imported`."""
    faults = []
    top, _, rest = imported.partition(".")
    if top in FORBIDDEN.get(layer, ()):
        faults.append(f"imports {top}")
    other = rest.partition(".")[0]
    if top == "highway" and other in RANKS and other != layer and RANKS[other] >= RANKS[layer]:
        faults.append(f"imports {other}, which is not below it")
    return faults


def test_every_layer_has_a_rank():
    assert {layer_of(path) for path in MODULES} - {None} <= set(RANKS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_down_only(path):
    layer = layer_of(path)
    if layer is None:
        return
    faults = {fault for imported in imported_modules(path) for fault in layer_faults(layer, imported)}
    assert not faults


@pytest.mark.parametrize(
    ("layer", "imported"),
    [
        ("mqtt", "highway.storage"),
        ("storage", "highway.mqtt.topics"),
        ("storage", "asyncio"),
        ("broker", "asyncio.events"),
        ("broker", "highway.config"),
        ("errors", "highway.clock"),
    ],
)
def test_the_layer_test_sees_a_fault(layer, imported):
    assert layer_faults(layer, imported)


def test_relative_imports_are_resolved():
    serve = PACKAGE / "cli" / "serve.py"
    assert "highway.server.daemon" in set(imported_modules(serve))
    for path in MODULES:
        assert all(not imported.startswith(".") for imported in imported_modules(path))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_opens_with_a_docstring_and_says_what_it_exports(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree), "no docstring"
    exported = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and any(
            getattr(target, "id", "") == "__all__"
            for target in getattr(node, "targets", [getattr(node, "target", None)])
        )
    ]
    assert len(exported) == 1, "no __all__"
    defined = {
        name
        for node in tree.body
        for name in (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else [target.id for target in ast.walk(node) if isinstance(target, ast.Name)]
        )
    }
    assert set(exported[0]) <= defined


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("path", [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))], ids=name_of)
def test_functions_stay_short(path):
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert not long


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_is_left_for_later(path):
    assert not re.search(r"TODO|FIXME|XXX|NotImplementedError", path.read_text(encoding="utf-8"))


def commands(group=highway, path=()):
    """Words of every command that does something, without the groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


def test_table_of_commands_in_the_readme_is_complete():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `highway ([a-z ]+?)(?: [A-Z\[-][^`]*)?` \|", readme, flags=re.MULTILINE)
    assert sorted(listed) == sorted(commands())


def keys_of(section, path=""):
    """Dotted names of every key of the configuration file."""
    for key, field in section.model_fields.items():
        yield f"{path}{key}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from keys_of(field.annotation, f"{path}{key}.")


# Keys that mean something else when they are there, whatever they say: shown as an example.
COMMENTED_OUT = {"http.token", "auth.acl", "auth.password_file", "auth.plugins"}


@pytest.mark.parametrize("key", [*keys_of(ConfigFile)])
def test_shipped_configuration_shows_and_explains_every_key(key):
    text = (ROOT / "config" / "highway.yaml").read_text(encoding="utf-8")
    if key in COMMENTED_OUT:
        assert f"\n  # {key.rpartition('.')[2]}:" in text
        return
    value = yaml.safe_load(text)
    for part in key.split("."):
        assert part in value, f"{key} is not in config/highway.yaml"
        value = value[part]
    name = key.rpartition(".")[2]
    if key.startswith("defaults."):
        # The keys of an entry are explained once, where the entries are.
        assert f"#   {name} " in (ROOT / "config" / "topics.yaml").read_text(encoding="utf-8")
        assert name in LogKeys.model_fields
    else:
        lines = text.splitlines()
        number = next(number for number, line in enumerate(lines) if re.match(rf"\s*{name}:", line))
        above = number
        while lines[above - 1].strip() and not lines[above - 1].lstrip().startswith("#"):
            above -= 1
        assert "#" in lines[number] or lines[above - 1].lstrip().startswith("#"), f"{key} is not explained"


def test_changelog_has_the_version():
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
