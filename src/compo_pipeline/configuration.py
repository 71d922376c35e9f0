"""Settings classes: frozen dataclasses that nodes parse from their YAML parameters."""

from __future__ import annotations

import copy
import difflib
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
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
# A name that becomes a folder or part of a query.
Name = Annotated[str, pydantic.Field(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
# A name in a database.
Title = Annotated[str, pydantic.Field(min_length=1, max_length=250)]
# Characters of a text and of a key; mappings and lists within one another.
_LONGEST, _LONGEST_KEY, _DEEPEST = 10_000, 200, 32
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 200
_FIELD = re.compile(r"[a-z]\w*(\.\w+)*: ")
# Names of passwords and keys, as in `?sig=`, `--params ...api_key=` and `{"api_key": "..."}`.
_SECRET = r"(?:pass(?:word|wd)?|pwd|secret|token|(?:api|access)[_-]?key|credential|signature|\bsig)"
_SECRETS = (
    (re.compile(r"(:/{1,2})[^\s/]\S*@"), r"\1***@"),
    (re.compile(rf"({_SECRET}=['\"]?|[?&]key=)[^&\s'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(rf"({_SECRET}['\"]: ['\"])[^'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(Bearer )\S+"), r"\1***"),
)


class PlainError(ClickException):
    """An error that the command line prints as its message alone, without a traceback.

    Passwords in the message are masked, and characters that a terminal would not print are escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(
            "".join(
                each if each.isprintable() or each == "\n" else ascii(each)[1:-1]
                for each in masked(message)
            )
        )


class SettingsError(PlainError, ValueError):
    """A configuration value that cannot be used; the message names its YAML key."""


def masked(text: str, key: str = "") -> str:
    """A text without the passwords of its URLs, and without the values of keys named as secret.

    Args:
        text: any.
        key: the dotted name of the text, where it is a single value.
    """
    prefix = f"{key}=" if key else ""
    shown = prefix + text
    for pattern, replacement in _SECRETS:
        shown = pattern.sub(replacement, shown)
    return shown.removeprefix(prefix)


@dataclass_transform(frozen_default=True, field_specifiers=(field, pydantic.Field))
def settings(cls: type[Settings]) -> type[Settings]:
    """Decorator of settings classes: a frozen dataclass whose types and bounds are validated.

    Unknown fields and numbers that are not finite are refused. The string literal below a field is
    its description.
    """
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    decorated = pydantic.dataclasses.dataclass(frozen=True, config=config)(cls)
    return cast("type[Settings]", decorated)


def nearest(name: str, known: Iterable[str]) -> str:
    """Hint at the known name closest to a misspelt one; empty when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def pip_install(extra: str) -> str:
    """The command that installs an optional extra, for errors."""
    return f"pip install -c constraints.txt -e '.[{extra}]'"


def parse(cls: type[Settings], values: Mapping[str, Any], key: str) -> Settings:
    """Build frozen settings from a mapping, refusing unknown keys and wrong types.

    Args:
        cls: a dataclass; its fields may be scalars, Literals, tuples, mappings and further
            dataclasses.
        values: the mapping as Kedro read it.
        key: its YAML key (`training`, `clic`, ...), for the error; empty for top-level keys.

    Raises:
        SettingsError: one line per problem, with key, value and what is allowed.
    """
    if not isinstance(values, Mapping):
        raise SettingsError(f"{key}: expected a mapping, got {_SHOWN.repr(values)}")
    _refuse_unusable(values, key)
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


def with_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested mappings with other values at some of their dotted keys."""
    changed = copy.deepcopy(dict(values))
    for key, value in changes.items():
        parent, _, last = key.rpartition(".")
        (value_at(changed, parent) if parent else changed)[last] = value
    return changed


def leaves(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every value in nested mappings."""
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def overlay(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key as nested mappings, as configuration files have them."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        mapping = nested
        for parent in parents:
            mapping = mapping.setdefault(parent, {})
        mapping[last] = value
    return nested


def _message(key: str, problem: Mapping[str, Any]) -> str:
    """One line for an error of pydantic's, with its YAML key."""
    path = _dotted(key, *problem["loc"])
    if problem["type"] == "value_error":
        # The message of a `__post_init__`; many begin with the field's name.
        own = str(problem["ctx"]["error"])
        return f"{path}{'.' if _FIELD.match(own) else ': '}{own}"
    got = "" if problem["type"] == "missing" else f" (got {_SHOWN.repr(problem['input'])})"
    # YAML has no tuples, and nor does `allowed` of docs/parameters.md.
    return f"{path}: {problem['msg'].replace('valid tuple', 'valid list')}{got}"


def _refuse_unusable(values: Any, key: str) -> None:
    """Refuse what no file, database or page holds: endless numbers, texts that are no Unicode."""
    stack = [(key, values, 0)]
    while stack:
        path, value, depth = stack.pop()
        if isinstance(value, Mapping | list | tuple):
            if depth == _DEEPEST:
                raise SettingsError(f"{path}: expected at most {_DEEPEST} levels of nesting")
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for name, item in items:
                if not str(name).isprintable() or len(str(name)) > _LONGEST_KEY:
                    shown = _SHOWN.repr(name)
                    raise SettingsError(f"{path}: expected short printable keys, got {shown}")
                stack.append((_dotted(path, name), item, depth + 1))
        elif problem := _unusable(value):
            raise SettingsError(f"{path}: expected {problem}, got {_SHOWN.repr(value)}")


def _unusable(value: Any) -> str:
    """What a value should be; empty where nothing is wrong."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of at most 63 bits"
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"a text of at most {_LONGEST} characters"
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        return "a text without NUL and surrogates"
    return ""


def _refuse_unknown(hint: Any, value: Any, key: str) -> None:
    """Refuse keys that are no fields of a dataclass, and booleans in place of numbers.

    At any depth of the type `hint`.
    """
    inner = get_args(hint)
    if hint in (int, float) and isinstance(value, bool):
        raise SettingsError(f"{key}: expected a number, got {value}")
    if is_dataclass(hint) and isinstance(value, Mapping):
        hints = get_type_hints(hint)
        known = [field.name for field in fields(hint)]
        for name, item in value.items():
            if name not in known:
                raise SettingsError(
                    f"{_dotted(key, name)}: unknown key{nearest(str(name), known)} "
                    f"(known: {', '.join(known)})"
                )
            _refuse_unknown(hints[name], item, _dotted(key, name))
    elif isinstance(value, Mapping) and _is_mapping(hint):
        for name, item in value.items():
            _refuse_unknown(inner[-1], item, _dotted(key, name))
        _refuse_incomplete(inner[-1], value, key)
    elif isinstance(value, list | tuple) and inner and not _is_union(hint):
        for index, item in enumerate(value):
            _refuse_unknown(inner[0], item, _dotted(key, index))
    elif _is_union(hint) and bool not in inner:
        for option in inner:
            _refuse_unknown(option, value, key)


def _refuse_incomplete(hint: Any, values: Mapping[str, Any], key: str) -> None:
    """Refuse entries without a required field: their names may be misspelt ones."""
    if not is_dataclass(hint):
        return
    required = {
        each.name for each in fields(hint) if each.default is each.default_factory is MISSING
    }
    entries = {name: item for name, item in values.items() if isinstance(item, Mapping)}
    complete = [name for name, item in entries.items() if required <= item.keys()]
    for name, item in entries.items():
        if missing := sorted(required - item.keys()):
            raise SettingsError(
                f"{_dotted(key, name)}: a new name needs {' and '.join(missing)} too"
                f"{nearest(str(name), complete)} (known: {', '.join(complete) or 'none'})"
            )


def _dotted(*parts: Any) -> str:
    return ".".join(str(part) for part in parts if part != "")


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (UnionType, Union)
