"""Settings classes, read from their source: importing all of them takes many seconds (torch).

The docstring of a class says what its fields mean (Google style, `Attributes:` or `Args:`), its
annotations say what is allowed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_PACKAGE = __package__.partition(".")[0]
_ROOT = Path(__file__).parents[1]
_WORDS = {"bool": "true or false", "int": "integer", "float": "number", "str": "text"}
_WORDS |= {"Path": "path", "None": "null", "Any": "any"}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_MAPPINGS = ("dict", "Mapping")
_FIELD = re.compile(r" {4}(\w+): (.*)")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a settings class.

    Attributes:
        type: what it may be, in words; empty where it is a settings class itself.
        meaning: from the class' docstring; may be empty.
        inner: the settings class that it holds.
        named: it maps names of the user's own to `inner`.
    """

    type: str
    meaning: str
    inner: SettingsClass | None = None
    named: bool = False


@dataclass(frozen=True, slots=True)
class SettingsClass:
    """A settings class: the first paragraph of its docstring, and its fields."""

    meaning: str
    fields: dict[str, Field] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Found:
    """A definition and the module it is in."""

    module: str
    node: ast.AST


def settings_class(path: str) -> SettingsClass:
    """The class of a dotted path below the package (`training.settings.TrainingSettings`)."""
    module, _, name = path.rpartition(".")
    found = _look_up(f"{_PACKAGE}.{module}", name)
    if found is None or not isinstance(found.node, ast.ClassDef):
        raise LookupError(f"{path} is no class of {_PACKAGE}")
    return _read(found)


def method_class(path: str, part: str) -> SettingsClass | None:
    """The settings `<part>_type` (`views`, `objective`) of a method's class, `module:Class`.

    None for a method of another package.
    """
    module, _, name = path.partition(":")
    found = _look_up(module, name) if module.startswith(_PACKAGE) else None
    given = None if found is None else _attribute(found, f"{part}_type")
    settings = None if given is None else _look_up(given.module, ast.unparse(given.node))
    return None if settings is None else _read(settings)


@cache
def _names(module: str) -> dict[str, ast.AST]:
    """What a module binds at its top level."""
    path = _ROOT.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = node.value
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: node for alias in node.names}
    return names


def _look_up(module: str, name: str) -> _Found | None:
    """Where a name of a module is defined; None outside of the package."""
    node = _names(module).get(name)
    if not isinstance(node, ast.ImportFrom):
        return None if node is None else _Found(module, node)
    source = node.module or ""
    if not source.startswith(_PACKAGE):
        return None
    original = next(each.name for each in node.names if name in (each.asname, each.name))
    return _look_up(source, original)


def _bases(found: _Found) -> Iterator[_Found]:
    """The classes of the package that a class inherits from."""
    assert isinstance(found.node, ast.ClassDef)
    for base in found.node.bases:
        if isinstance(base, ast.Name) and (inherited := _look_up(found.module, base.id)):
            yield inherited


def _attribute(found: _Found, name: str) -> _Found | None:
    """The value of a class attribute, the class' own or inherited."""
    assert isinstance(found.node, ast.ClassDef)
    for node in found.node.body:
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == name:
            return _Found(found.module, node.value)
    return next((got for base in _bases(found) if (got := _attribute(base, name))), None)


def _read(found: _Found) -> SettingsClass:
    assert isinstance(found.node, ast.ClassDef)
    summary, meanings = _docstring(ast.get_docstring(found.node) or "")
    fields: dict[str, Field] = {}
    for base in _bases(found):
        fields |= _read(base).fields
    for node in found.node.body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("Class"):
            name, annotation = ast.unparse(node.target), _Found(found.module, node.annotation)
            inner = next(_classes(annotation), None)
            fields[name] = Field(
                _described(annotation) if inner is None else "",
                meanings.get(name, ""),
                None if inner is None else _read(inner),
                named=_head(node.annotation) in _MAPPINGS,
            )
    return SettingsClass(summary, fields)


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the meaning of every field that the docstring names."""
    meanings: dict[str, str] = {}
    name = ""
    listed = False
    for line in text.splitlines():
        if line in ("Attributes:", "Args:"):
            listed = True
        elif line.strip() and not line.startswith("    "):
            listed = False
        elif listed and (match := _FIELD.fullmatch(line)):
            name = match[1]
            meanings[name] = match[2]
        elif listed and line.strip():
            meanings[name] += f" {line.strip()}"
    return " ".join(text.partition("\n\n")[0].split()), meanings


def _classes(annotation: _Found) -> Iterator[_Found]:
    """The settings classes that an annotation names."""
    for node in ast.walk(annotation.node):
        if isinstance(node, ast.Name) and (found := _look_up(annotation.module, node.id)):
            if isinstance(found.node, ast.ClassDef):
                yield found
            else:
                yield from _classes(found)


def _head(annotation: ast.AST) -> str:
    return ast.unparse(annotation.value) if isinstance(annotation, ast.Subscript) else ""


def _described(annotation: _Found) -> str:
    """What an annotation allows, in words."""

    def words(node: ast.AST) -> str:
        return _described(_Found(annotation.module, node))

    node = annotation.node
    if isinstance(node, ast.BinOp):
        return f"{words(node.left)} or {words(node.right)}"
    if isinstance(node, ast.Name) and (found := _look_up(annotation.module, node.id)):
        return _described(found)
    if not isinstance(node, ast.Subscript):
        return _WORDS.get(ast.unparse(node), ast.unparse(node))
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    head = _head(node)
    if head == "Literal":
        return " or ".join(str(ast.literal_eval(part)) for part in parts)
    if head == "Annotated":
        return f"{words(parts[0])} {' and '.join(map(_bound, parts[1:]))}".strip()
    if head in _MAPPINGS:
        return f"mapping to {words(parts[-1])}"
    if head == "tuple" and ast.unparse(parts[-1]) != "...":
        return f"[{', '.join(map(words, parts))}]"
    return f"list of {words(parts[0])}"


def _bound(node: ast.AST) -> str:
    """A bound of annotated_types (`Ge(1)`) as `>= 1`."""
    if isinstance(node, ast.Call) and node.args:
        return f"{_BOUNDS[ast.unparse(node.func).lower()]} {ast.unparse(node.args[0])}"
    return ""
