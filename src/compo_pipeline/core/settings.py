"""Settings classes: frozen dataclasses that nodes parse from their YAML parameters."""

from __future__ import annotations

import copy
import difflib
import re
import reprlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, is_dataclass
from functools import cache, reduce
from importlib.metadata import entry_points
from operator import getitem
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
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
# A number from 0 to 1. Further bounds: pydantic's PositiveInt, NonNegativeFloat, ..., and Field.
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
# A name that becomes a folder or part of a query.
NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9_.-]*$"
Name = Annotated[str, pydantic.Field(pattern=NAME_PATTERN, max_length=100)]
# Marks a text that may look like a number: YAML reads a variant 2 as one.
NUMBERS_TOO = pydantic.BeforeValidator(
    lambda given: str(given) if type(given) in (int, float) else given
)
# A mapping from names of the user's own; null takes one away that conf/base has.
Value = TypeVar("Value")
if TYPE_CHECKING:
    Open: TypeAlias = dict[str, Value]
else:
    Open = Annotated[
        dict[str, Value | None],
        pydantic.AfterValidator(
            lambda given: {name: value for name, value in given.items() if value is not None}
        ),
    ]
# Marks a field of settings in `Annotated`: it changes how fast a run is; results by rounding alone.
SPEED = "speed"
# A name in a database.
Title = Annotated[str, pydantic.Field(min_length=1, max_length=250)]
# Of a checkout; an installed package has none.
_CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
# Characters of a part of a key in a message.
_LONGEST_KEY = 200
_LONGEST_MESSAGE = 2000
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
    if values is None:
        raise SettingsError(f"{key}: expected a mapping, got None")
    try:
        # In JSON a list may be a tuple and a text a path, but no boolean a number.
        given = pydantic_core.to_json(values, inf_nan_mode="constants", fallback=repr)
        return cast(Settings, _adapter(cast(Any, cls)).validate_json(given, strict=True))
    except pydantic_core.PydanticSerializationError as error:
        raise SettingsError(f"{key}: {error}") from None
    except pydantic.ValidationError as error:
        problems = (_describe_error(cls, key, each) for each in error.errors())
        lines = (f"{place(path)}{message}" for path, message in problems)
        raise SettingsError("\n".join(dict.fromkeys(lines))) from None


def plain(parsed: Any) -> Any:
    """Settings with all defaults as plain mappings, lists and scalars, as in YAML."""
    return _adapter(cast(Any, type(parsed))).dump_python(parsed, mode="json")


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key in nested mappings."""
    return reduce(getitem, key.split("."), cast(Any, values))


def with_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Deep copy of nested mappings with other values at some dotted keys, which may be new."""
    changed = copy.deepcopy(dict(values))
    for key, value in changes.items():
        *parents, last = key.split(".")
        mapping = changed
        for parent in parents:
            mapping[parent] = mapping.get(parent) or {}
            mapping = mapping[parent]
        mapping[last] = value
    return changed


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


class Setting(NamedTuple):
    """A field of a settings class, or of a class nested in it."""

    key: str
    """Dotted. `<name>` stands for a name of the user's own, or a place in a list."""
    owner: type
    """Class that has the field."""
    hint: Any
    """Type hint, with its metadata."""

    @property
    def default(self) -> Any:
        """Default as in YAML. It is None if the setting must be given."""
        own: Any = self.owner
        field = own.__pydantic_fields__[self.key.rpartition(".")[2]]
        default = field.get_default(call_default_factory=True)
        return None if field.is_required() else pydantic_core.to_jsonable_python(default)


@cache
def all_settings(cls: type, prefix: str = "") -> tuple[Setting, ...]:
    """Fields of a settings class and of the classes nested in it, which follow their field."""
    found = []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        found.append(Setting(f"{prefix}{name}", cls, hint))
        for inner, own in classes_in(hint, f"{prefix}{name}."):
            found += all_settings(own, inner)
    return tuple(found)


def speed_keys(cls: type) -> set[str]:
    """Dotted keys of the fields marked by `SPEED`, which only change a run's speed."""
    every = all_settings(cls)
    return {each.key for each in every if SPEED in getattr(each.hint, "__metadata__", ())}


def classes_in(hint: Any, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Yield the settings classes in a type hint, with the prefix of the keys of their fields."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield prefix, hint
    elif get_origin(hint) not in (Annotated, Union, UnionType):
        prefix = f"{prefix}<name>."
    for inner in get_args(hint):
        yield from classes_in(inner, prefix)


def _describe_error(cls: type, key: str, problem: Mapping[str, Any]) -> tuple[str, str]:
    """Dotted key and message of one error of a pydantic validation."""
    location = problem["loc"]
    path = _join_key(key, *location)
    if problem["type"] == "value_error":
        # The message of a `__post_init__`; many begin with the field's name.
        own = str(problem["ctx"]["error"])[:_LONGEST_MESSAGE]
        between = "." if _FIELD.match(own) else ": "
        return path, f"{path}{between}{own}" if path else own
    if problem["type"] == "unexpected_keyword_argument":
        known, elsewhere = _known_keys(cls, location)
        meant = " or ".join(repr(_join_key(key, each)) for each in elsewhere[:3])
        hint = f"; did you mean {meant}?" if meant else nearest(str(location[-1]), known)
        hint = replacement(path) or hint
        return path, f"{path}: unknown key{hint} (known: {', '.join(known)})"
    if problem["type"] == "missing":
        return path, f"{path}: {problem['msg']}"
    message = problem["msg"].replace("valid array", "valid list").replace("an object", "a mapping")
    plugin = problem["type"] == "literal_error" and isinstance(problem["input"], str)
    hint = nearest(problem["input"], ()) if plugin else ""
    return path, f"{path}: {message} (got {_SHOWN.repr(problem['input'])}){hint}"


def _known_keys(cls: type, location: Sequence[str | int]) -> tuple[list[str], list[str]]:
    """Names that an unknown key could have in its place, and keys elsewhere that have its name."""
    *parents, wrong = map(str, location)
    beside, elsewhere = [], []
    for each in all_settings(cls):
        *above, name = each.key.split(".")
        if len(above) == len(parents) and all(
            one in (other, "<name>") for one, other in zip(above, parents, strict=True)
        ):
            beside.append(name)
        elif name == wrong:
            elsewhere.append(each.key)
    return beside, elsewhere


def _join_key(*parts: Any) -> str:
    """Join the non-empty parts of a key by dots.

    Parts that would not print are quoted.
    """
    names = (str(part)[:_LONGEST_KEY] for part in parts if part != "")
    return ".".join(name if name.isprintable() else repr(name) for name in names)
