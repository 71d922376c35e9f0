"""Settings classes: frozen dataclasses that nodes parse from their YAML parameters."""

from __future__ import annotations

import copy
import difflib
import re
import reprlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
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
import pydantic_core
from click import ClickException

from compo_pipeline.core.removed import replacement

Settings = TypeVar("Settings")
Parsed = TypeVar("Parsed")
# A number from 0 to 1. Further bounds: pydantic's PositiveInt, NonNegativeFloat, ..., and Field.
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
# A name that becomes a folder or part of a query.
NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_.-]*$"
Name = Annotated[str, pydantic.Field(pattern=NAME_PATTERN, max_length=100)]
# A mapping from names of the user's own; null takes one away that conf/base has.
Value = TypeVar("Value")
Open = Annotated[
    dict[str, Value],
    pydantic.BeforeValidator(
        lambda given: (
            {name: value for name, value in given.items() if value is not None}
            if isinstance(given, Mapping)
            else given
        )
    ),
]


def _section(given: Any) -> Any:
    """Validator: a mapping, or the settings that were made of it."""
    if not isinstance(given, Mapping) and not is_dataclass(given):
        raise ValueError(f"expected a mapping, got {_SHOWN.repr(given)}")
    return given


# Settings of a part under its name: a mapping, and of the part that is chosen an object.
Section = Annotated[Any, pydantic.AfterValidator(_section)]
# Marks a field of settings in `Annotated`: it changes how fast a run is; results by rounding alone.
SPEED = "speed"
# A name in a database.
Title = Annotated[str, pydantic.Field(min_length=1, max_length=250)]
# Of a checkout; an installed package has none.
_CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
# Characters of a part of a key in a message.
_LONGEST_KEY = 200
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
    """Error that the command line prints as a message without a traceback.

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
    """Error about a configuration value that cannot be used.

    Its message names the YAML key.
    """


def masked(text: str, key: str = "") -> str:
    """A text with `***` in place of passwords in URLs and of values of keys named as secret.

    Args:
        text: text that may contain passwords.
        key: the dotted name of the text, where it is a single value.
    """
    prefix = f"{key}=" if key else ""
    shown = prefix + text
    for pattern, mask in _SECRETS:
        shown = pattern.sub(mask, shown)
    return shown.removeprefix(prefix)


@dataclass_transform(frozen_default=True, field_specifiers=(field, pydantic.Field))
def settings(cls: type[Settings]) -> type[Settings]:
    """Decorator that makes a class a frozen dataclass whose field types and bounds are validated.

    Unknown fields and numbers that are not finite are refused. The string literal below a field is
    its description.
    """
    config = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    decorated = pydantic.dataclasses.dataclass(frozen=True, config=config)(cls)
    return cast("type[Settings]", decorated)


def nearest(name: str, known: Iterable[str]) -> str:
    """Hint "; did you mean 'x'?" with the most similar known name; empty if none is similar.

    Of a plug-in that is not installed yet, the hint is the command that installs it.
    """
    if _is_uninstalled_plugin(name):
        return "; it is an entry point in pyproject.toml, which `pip install -e .` installs"
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def _is_uninstalled_plugin(name: str) -> bool:
    """Whether pyproject.toml of the working directory has an entry point that is not installed."""
    try:
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
        groups = project["project"]["entry-points"]
    except (OSError, ValueError, KeyError):
        return False
    return any(
        name in points and name not in entry_points(group=group).names
        for group, points in groups.items()
    )


def pip_install(extra: str) -> str:
    """The pip command that installs an optional extra of this package, for error messages."""
    if _CONSTRAINTS.is_file():
        return f"pip install -c constraints.txt -e '.[{extra}]'"
    return f"pip install 'compo-pipeline[{extra}]'"


def parse(
    cls: type[Settings],
    values: Any,
    key: str = "",
    place: Callable[[str], str] = lambda key: "",
) -> Settings:
    """Build frozen settings from a mapping, and refuse unknown keys and wrong types.

    Args:
        cls: a dataclass; its fields may be scalars, Literals, tuples, mappings and further
            dataclasses.
        values: the mapping as Kedro read it; settings of this class are returned as they are.
        key: YAML key of the settings (`training`, `clic`, ...), for errors. Empty for top-level
            keys.
        place: gives the place of a dotted key, such as a file, which its error begins with.

    Raises:
        SettingsError: one line per problem, with key, value and what is allowed.
    """
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise SettingsError(f"{key}: expected a mapping, got {_SHOWN.repr(values)}")
    parsed = None
    try:
        parsed = _adapter(cast(Any, cls)).validate_python(dict(values))
    except pydantic.ValidationError as error:
        problems = [_describe_error(cls, key, each) for each in error.errors()]
    else:
        problems = list(_booleans_for_numbers(parsed, values, key))
    if problems:
        lines = (f"{place(path)}{message}" for path, message in problems)
        raise SettingsError("\n".join(dict.fromkeys(lines)))
    return cast(Settings, parsed)


def plain(parsed: Any) -> Any:
    """Settings with all defaults as plain mappings, lists and scalars, as in YAML."""
    return _adapter(cast(Any, type(parsed))).dump_python(parsed, mode="json")


def defaults(cls: type) -> dict[str, Any]:
    """Default values of a settings class by field, as in YAML, or null for required fields."""
    found: dict[str, Any] = {}
    for each in fields(cast(Any, cls)):
        made = each.default_factory() if each.default_factory is not MISSING else each.default
        found[each.name] = None if made is MISSING else made
    values: dict[str, Any] = pydantic_core.to_jsonable_python(found)
    return values


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key in nested mappings."""
    value: Any = values
    for part in key.split("."):
        value = value[part]
    return value


def has_key(values: Mapping[str, Any], key: str) -> bool:
    """Whether nested mappings hold a value at a dotted key."""
    try:
        value_at(values, key)
    except (KeyError, TypeError):
        return False
    return True


def with_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Deep copy of nested mappings with other values at some dotted keys, which may be new."""
    changed = copy.deepcopy(dict(values))
    for key, value in changes.items():
        *parents, last = key.split(".")
        mapping = changed
        for parent in parents:
            mapping = mapping.setdefault(parent, {})
        mapping[last] = value
    return changed


def replaced(parsed: Parsed, changes: Mapping[str, Any]) -> Parsed:
    """Settings, or a mapping of settings, with other values at some dotted keys."""
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        if rest:
            own = parsed[name] if isinstance(parsed, Mapping) else getattr(parsed, name)
            value = replaced(own, {rest: value})
        parsed = cast(
            Parsed,
            {**parsed, name: value}
            if isinstance(parsed, Mapping)
            else replace(cast(Any, parsed), **{name: value}),
        )
    return parsed


def leaves(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of every value in nested mappings."""
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@cache
def _adapter(cls: type[Any]) -> pydantic.TypeAdapter[Any]:
    """Pydantic validator of a dataclass, which refuses unknown keys."""
    if hasattr(cls, "__pydantic_config__"):
        return pydantic.TypeAdapter(cls)
    # Pydantic takes no configuration for a dataclass itself.
    return pydantic.TypeAdapter(cast(Any, cls | None), config=pydantic.ConfigDict(extra="forbid"))


def _describe_error(cls: type, key: str, problem: Mapping[str, Any]) -> tuple[str, str]:
    """Dotted key and message of one error of a pydantic validation."""
    location = problem["loc"]
    path = _join_key(key, *location)
    if problem["type"] == "value_error":
        # The message of a `__post_init__`; many begin with the field's name.
        own = str(problem["ctx"]["error"])
        between = "." if _FIELD.match(own) else ": "
        return path, f"{path}{between}{own}" if path else own
    if problem["type"] == "unexpected_keyword_argument":
        known = field_names(type_at(cls, location[:-1]))
        hint = replacement(path) or _key_hint(str(location[-1]), known, field_paths(cls, key))
        return path, f"{path}: unknown key{hint} (known: {', '.join(known)})"
    if problem["type"] == "missing":
        return path, f"{path}: {problem['msg']}"
    # YAML has no tuples, and nor does `allowed` of docs/reference/parameters.
    message = problem["msg"].replace("valid tuple", "valid list")
    plugin = problem["type"] == "literal_error" and isinstance(problem["input"], str)
    hint = nearest(problem["input"], ()) if plugin else ""
    return path, f"{path}: {message} (got {_SHOWN.repr(problem['input'])}){hint}"


def _key_hint(name: str, known: Sequence[str], paths: Iterable[str]) -> str:
    """Hint at the key that an unknown key may stand for: of equal name elsewhere, or similar."""
    elsewhere = [path for path in paths if path.rpartition(".")[2] == name]
    if elsewhere:
        return f"; did you mean {' or '.join(map(repr, elsewhere[:3]))}?"
    return nearest(name, known)


def field_paths(cls: Any, prefix: str = "") -> Iterator[str]:
    """Yield dotted names of all fields of a dataclass and of its nested dataclasses."""
    for name, hint in get_type_hints(cls).items() if is_dataclass(cls) else ():
        path = _join_key(prefix, name)
        yield path
        yield from field_paths(hint, path)


def field_names(cls: Any) -> list[str]:
    """Names of the fields of a dataclass, or an empty list for another type."""
    return [each.name for each in fields(cls)] if is_dataclass(cls) else []


def speed_paths(cls: Any, prefix: str = "") -> Iterator[str]:
    """Yield dotted names of the fields marked by `SPEED`, which only change a run's speed."""
    for name, hint in get_type_hints(cls, include_extras=True).items():
        path = _join_key(prefix, name)
        if SPEED in getattr(hint, "__metadata__", ()):
            yield path
        elif is_dataclass(hint):
            yield from speed_paths(hint, path)


def type_at(cls: Any, location: Iterable[str | int]) -> Any:
    """Type hint of a nested field or item of a settings class, or None if the types leave it open.

    Of a union it is the first that has keys or items.
    """
    for name in location:
        if is_dataclass(cls):
            cls = get_type_hints(cls).get(str(name))
        else:
            inner = get_args(cls)
            cls = None if not inner else inner[-1] if _is_mapping(cls) else inner[0]
        if get_origin(cls) in (UnionType, Union):
            cls = next(
                (each for each in get_args(cls) if is_dataclass(each) or get_args(each)), None
            )
    return cls


def _booleans_for_numbers(parsed: Any, given: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield key and error of each boolean that pydantic takes for a number."""
    if isinstance(given, Mapping):
        for name, value in given.items():
            inner = parsed.get(name) if isinstance(parsed, Mapping) else getattr(parsed, name)
            yield from _booleans_for_numbers(inner, value, _join_key(key, name))
    elif isinstance(given, list | tuple):
        for number, (inner, value) in enumerate(zip(parsed, given, strict=True)):
            yield from _booleans_for_numbers(inner, value, _join_key(key, number))
    elif isinstance(given, bool) and not isinstance(parsed, bool):
        yield key, f"{key}: expected a number, got {given}"


def _join_key(*parts: Any) -> str:
    """Join the non-empty parts of a key by dots.

    Parts that would not print are quoted.
    """
    names = (str(part)[:_LONGEST_KEY] for part in parts if part != "")
    return ".".join(name if name.isprintable() else repr(name) for name in names)


def _is_mapping(hint: Any) -> bool:
    """Whether a type hint is that of a mapping."""
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)
