"""What the types of frozen settings allow a search to do with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

KINDS = ("float", "log_float", "times", "int", "categorical")
_SCALARS = {bool, int, float, str, Literal}


def leaves(settings: type, prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted key and type of every value of settings."""
    hints = get_type_hints(settings)
    for field in fields(settings):
        name, hint = f"{prefix}.{field.name}", hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from leaves(hint, name)
        else:
            yield name, hint


def _parts(hint: Any) -> tuple[Any, ...]:
    """What a type may be, Literals without their values."""
    if get_origin(hint) in (UnionType, Union):
        return tuple(option for part in get_args(hint) for option in _parts(part))
    return (get_origin(hint) or hint,)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, without the leniency of reading configuration."""
    if get_origin(hint) in (UnionType, Union):
        return any(fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float and type(value) is int:
        return True
    return type(value) is hint


def described(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) in (UnionType, Union):
        return " or ".join(described(part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    names = {bool: "true or false", int: "whole numbers", float: "numbers", str: "a text"}
    return names.get(hint, "null")


def kinds(hint: Any) -> list[str]:
    """The kinds of search that a setting of a type can have; none where it holds several values."""
    parts = _parts(hint)
    if not set(parts) & _SCALARS:
        return []
    numeric = ["float", "log_float", "times"] if float in parts else []
    numeric = numeric or (["int"] if int in parts else [])
    return [*numeric, "categorical"]
