"""Reference of the parameters: default, allowed values and meaning of every key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple, get_args, get_type_hints

import pydantic
import yaml
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from compo_pipeline.core.settings import SettingsError, nearest

_TYPES = {"boolean": "true or false", "integer": "integer", "number": "number"}
_TYPES |= {"string": "text", "null": "null", "array": "list"}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_OPEN = "mapping, with names of your own"


class ParameterEntry(NamedTuple):
    """Documentation of one YAML key: description, allowed values, default and current value.

    Attributes:
        key: dotted.
        meaning: description of the key. May be empty.
        type: allowed values in words; empty for a mapping of further keys, whose entries follow.
        default: value without an environment. For a mapping from your own names to settings, the
            names.
        value: value in the requested environment. For a mapping from your own names to settings,
            what differs.
    """

    key: str
    meaning: str
    type: str = ""
    default: Any = None
    value: Any = None


def collect_entries(
    cls: type,
    parts: Mapping[str, type],
    default: Mapping[str, Any],
    value: Mapping[str, Any],
    prefix: str = "",
) -> Iterator[ParameterEntry]:
    """Yield the entries of all YAML keys of a settings class, in the order of its fields.

    Args:
        cls: the settings class.
        parts: settings classes of keys whose type hint does not name them, by dotted key.
        default: default values of the class's keys, as in YAML.
        value: values of the class's keys in an environment.
        prefix: prefix of the keys, ending with a dot.
    """
    plain = get_type_hints(cls)
    for name, hint in get_type_hints(cls, include_extras=True).items():
        key, was, now = f"{prefix}{name}", default[name], value[name]
        own = parts.get(key) or _class_in(hint)
        meaning = _meaning(cls, name) or _first_paragraph(own.__doc__ if own else "")
        if own is None:
            yield ParameterEntry(key, meaning, _allowed(hint), _names_only(was), _names_only(now))
        elif key in parts or is_dataclass(plain[name]):
            yield ParameterEntry(key, meaning)
            yield from collect_entries(own, parts, was, now, f"{key}.")
        else:
            changed = {each: now[each] for each in now if now[each] != was.get(each)}
            yield ParameterEntry(key, meaning, _OPEN, list(was), changed or list(was))
            for each, inner in get_type_hints(own, include_extras=True).items():
                yield ParameterEntry(f"{key}.<name>.{each}", _meaning(own, each), _allowed(inner))


def _class_in(hint: Any) -> type | None:
    """Settings class in a type hint, or in its mapping, list or union, or None if there is none."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    return next(filter(None, map(_class_in, get_args(hint))), None)


def _meaning(cls: type, name: str) -> str:
    """Description of a field.

    Subclasses inherit it, which pydantic does not provide.
    """
    found = (getattr(each, "__pydantic_fields__", {}).get(name) for each in cls.__mro__)
    return _first_paragraph(next((one.description for one in found if one and one.description), ""))


def _first_paragraph(text: str | None) -> str:
    """First paragraph of a text, on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def _names_only(value: Any) -> Any:
    """A value, with lists of keys in place of nested mappings."""
    if not isinstance(value, Mapping):
        return value
    return {name: list(v) if isinstance(v, Mapping) else v for name, v in value.items()}


def _allowed(hint: Any) -> str:
    """Allowed values of a type hint as text, such as `integer >= 1`."""
    return _allowed_by(pydantic.TypeAdapter(hint).json_schema())


def _allowed_by(schema: Mapping[str, Any]) -> str:
    """Allowed values of a JSON schema as text."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(map(_allowed_by, schema["anyOf"]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(_allowed_by, schema['prefixItems']))}]"
    kind = "object" if "$ref" in schema else schema.get("type", "any")
    if kind == "array" and schema.get("items"):
        return f"list of {_allowed_by(schema['items'])}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"mapping to {_allowed_by(values)}" if isinstance(values, Mapping) else "mapping"
    name = "path" if schema.get("format") == "path" else _TYPES.get(kind, kind)
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return f"{name} {' and '.join(bounds)}".strip()


def chosen(entries: Sequence[ParameterEntry], prefix: str) -> list[ParameterEntry]:
    """Reference entries of a key and of the keys nested in it, else of all keys with that prefix.

    Raises:
        SettingsError: there are none; names the nearest key.
    """
    inside = [entry for entry in entries if f"{entry.key}.".startswith(f"{prefix}.")]
    found = inside or [entry for entry in entries if entry.key.startswith(prefix)]
    if not found:
        known = [entry.key for entry in entries]
        same = [key for key in known if key.endswith(f".{prefix}")]
        hint = f"; did you mean {' or '.join(same)}?" if same else nearest(prefix, known)
        raise SettingsError(f"no key begins with '{prefix}'{hint}")
    return found


def show(entries: Sequence[ParameterEntry], env: str, console: Console) -> None:
    """Print parameter entries: key, default, type, and the description below."""
    for entry in entries:
        heading = Text(entry.key, style="bold")
        if default := default_text(entry):
            heading.append(f" = {default}", style="not bold cyan")
        if entry.value != entry.default:
            heading.append(f"  {env}: {_one_line(entry.value)}", style="not bold yellow")
        heading.append(f"  ({entry.type})" if entry.type else "", style="not bold dim")
        console.print(heading, soft_wrap=True)
        if entry.meaning:
            console.print(Padding(Text(entry.meaning), (0, 0, 0, 4), expand=False))


def default_text(entry: ParameterEntry) -> str:
    """Default value of an entry as text, empty for a mapping, and for keys that the user names."""
    return "" if not entry.type or "<" in entry.key else _one_line(entry.default)


def _one_line(value: Any) -> str:
    """A value as YAML on one line."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return str(dumped).removesuffix("...\n").strip()
