"""Registries of named plugins (methods, readers, ...) that import each one at its first use.

Installed packages add their own.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
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


def named_fields(kinds: Mapping[str, type]) -> Callable[[type[Class]], type[Class]]:
    """Decorator of a settings class: adds a field for each name, of the settings class beside it.

    Settings that must be given have no default: the field is None without them.

    Raises:
        ValueError: the class has a field of that name.
    """

    def add(cls: type[Class]) -> type[Class]:
        for name, kind in kinds.items():
            if name in cls.__annotations__:
                raise ValueError(f"'{name}' is a setting of {cls.__name__} already")
            required = any(
                each.default is each.default_factory is MISSING for each in fields(cast(Any, kind))
            )
            cls.__annotations__[name] = cast(Any, kind) | None if required else kind
            setattr(cls, name, None if required else field(default_factory=kind))
        return cls

    return add


def refuse_unset(settings: object, *choices: str) -> None:
    """Raise an error if a named part that was chosen has no settings.

    Args:
        settings: settings whose parts `named_fields` added.
        choices: fields that name one of these parts, or none.

    Raises:
        ValueError: naming the part.
    """
    for choice in choices:
        name = getattr(settings, choice)
        if name is not None and getattr(settings, name) is None:
            raise ValueError(f"{name}: expected its settings, since {choice} is {name}; got null")
