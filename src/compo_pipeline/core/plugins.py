"""Registries of named plugins (methods, readers, ...) that import each one at its first use.

Installed packages add their own.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, TypeVar, cast

Part = TypeVar("Part")
Class = TypeVar("Class")


@cache
def _installed(path: tuple[str, ...]) -> Any:
    """Entry points of the packages on a path, whose metadata are read once."""
    return entry_points()


def points_of(group: str) -> EntryPoints:
    """Entry points that installed packages add to a group."""
    found: EntryPoints = _installed(tuple(sys.path)).select(group=group)
    return found


class Registry(UserDict[str, Part]):
    """Mapping from name to plug-in object (e.g. a method), which is imported at its first lookup.

    An installed package adds parts by entry points of the group, a program by assignment.

    Args:
        group: group of the entry points.
        own: import path (`module:attribute`) of each part of this package, by name.

    Raises:
        ValueError: two parts have one name.
    """

    def __init__(self, group: str, own: Mapping[str, str]) -> None:
        super().__init__()
        self.group = group
        points = [EntryPoint(name, path, group) for name, path in own.items()]
        # Those of the backport `importlib_metadata`, where a library imports it, are of its class.
        theirs = [EntryPoint(one.name, one.value, group) for one in points_of(group)]
        for point in (*points, *theirs):
            other: Any = self.data.setdefault(point.name, cast(Part, point))
            if other.value != point.value:
                raise ValueError(
                    f"{group}: two are named '{point.name}': {other.value} and {point.value}"
                )

    def __getitem__(self, name: str) -> Part:
        part = self.data[name]
        if isinstance(part, EntryPoint):
            part = self.data[name] = part.load()
        return part


def plugin_names(group: str) -> tuple[str, ...]:
    """Names of the entry points that installed packages add to a group, sorted."""
    return tuple(sorted(points_of(group).names))


def plugin_fields(group: str) -> Callable[[type[Class]], type[Class]]:
    """Decorator of a settings class: adds a field for each entry point of a group.

    An entry point names the settings class of its field.

    Raises:
        ValueError: the class has a field of that name.
    """

    def add(cls: type[Class]) -> type[Class]:
        for point in points_of(group):
            if point.name in cls.__annotations__:
                raise ValueError(f"{group}: '{point.name}' is a setting of this package")
            named_fields((point.name,), point.load())(cls)
        return cls

    return add


def named_fields(names: Iterable[str], kind: Any) -> Callable[[type[Class]], type[Class]]:
    """Decorator of a settings class: adds a field of a type for each name, empty by default."""

    def add(cls: type[Class]) -> type[Class]:
        for name in names:
            cls.__annotations__[name] = kind
            setattr(cls, name, field(default_factory=kind if isinstance(kind, type) else dict))
        return cls

    return add
