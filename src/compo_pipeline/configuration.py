"""Settings classes: frozen dataclasses that nodes parse from their YAML parameters."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
from click import ClickException

Settings = TypeVar("Settings")
# A number from 0 to 1. Further bounds: pydantic's PositiveInt, NonNegativeFloat, ..., and Field.
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
_FIELD = re.compile(r"[a-z]\w*(\.\w+)*: ")


class SettingsError(ClickException, ValueError):
    """A configuration value that cannot be used; the message names its YAML key.

    The command line prints the message alone: a mistyped key needs no traceback.
    """


@dataclass_transform(frozen_default=True, field_specifiers=(field, pydantic.Field))
def settings(cls: type[Settings]) -> type[Settings]:
    """Decorator of settings classes: a frozen dataclass whose types and bounds are validated.

    Unknown fields are refused. The string literal below a field is its description.
    """
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True)
    decorated = pydantic.dataclasses.dataclass(frozen=True, config=config)(cls)
    return cast("type[Settings]", decorated)


def nearest(name: str, known: Iterable[str]) -> str:
    """Hint at the known name closest to a misspelt one; empty when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def parse(cls: type[Settings], values: Mapping[str, Any], key: str) -> Settings:
    """Build frozen settings from a mapping, refusing unknown keys and wrong types.

    Args:
        cls: a dataclass; its fields may be scalars, Literals, tuples, mappings and further
            dataclasses.
        values: the mapping as Kedro read it.
        key: its YAML key (`training`, `clic`, ...), for the error.

    Raises:
        SettingsError: one line per problem, with key, value and what is allowed.
    """
    if not isinstance(values, Mapping):
        raise SettingsError(f"{key}: expected a mapping, got {values!r}")
    _refuse_unknown(cls, values, key)
    try:
        return pydantic.TypeAdapter(cls).validate_python(dict(values))
    except pydantic.ValidationError as error:
        raise SettingsError("\n".join(_message(key, each) for each in error.errors())) from None


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key."""
    value: Any = values
    for part in key.split("."):
        value = value[part]
    return value


def leaves(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every value in nested mappings."""
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _message(key: str, problem: Mapping[str, Any]) -> str:
    """One line for an error of pydantic's, with its YAML key."""
    path = ".".join([key, *(str(part) for part in problem["loc"])])
    if problem["type"] == "value_error":
        # The message of a `__post_init__`; many begin with the field's name.
        own = str(problem["ctx"]["error"])
        return f"{path}{'.' if _FIELD.match(own) else ': '}{own}"
    got = "" if problem["type"] == "missing" else f" (got {problem['input']!r})"
    return f"{path}: {problem['msg']}{got}"


def _refuse_unknown(hint: Any, value: Any, key: str) -> None:
    """Refuse keys that are no fields of a dataclass, at any depth of the type `hint`."""
    inner = get_args(hint)
    if is_dataclass(hint) and isinstance(value, Mapping):
        hints = get_type_hints(hint)
        known = [field.name for field in fields(hint)]
        for name, item in value.items():
            if name not in known:
                raise SettingsError(
                    f"{key}.{name}: unknown key{nearest(str(name), known)} "
                    f"(known: {', '.join(known)})"
                )
            _refuse_unknown(hints[name], item, f"{key}.{name}")
    elif isinstance(value, Mapping) and _is_mapping(hint):
        for name, item in value.items():
            _refuse_unknown(inner[-1], item, f"{key}.{name}")
    elif isinstance(value, list | tuple) and inner and not _is_union(hint):
        for index, item in enumerate(value):
            _refuse_unknown(inner[0], item, f"{key}.{index}")
    elif _is_union(hint):
        for option in inner:
            _refuse_unknown(option, value, key)


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (UnionType, Union)
