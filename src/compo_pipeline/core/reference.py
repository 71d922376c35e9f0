"""Reference of the parameters: default, allowed values and meaning of every key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pydantic
import yaml
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from compo_pipeline.core.settings import (
    Setting,
    SettingsError,
    all_settings,
    classes_in,
    nearest,
    value_at,
)

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
        default: value without an environment. Of nested mappings, the names.
        value: value in the requested environment, in full if it differs.
    """

    key: str
    meaning: str
    type: str = ""
    default: Any = None
    value: Any = None


def collect_entries(
    cls: type, default: Mapping[str, Any], value: Mapping[str, Any]
) -> Iterator[ParameterEntry]:
    """Yield the entries of all YAML keys of a settings class, in the order of its fields.

    Args:
        cls: the settings class.
        default: default values of all keys, as in YAML.
        value: values of all keys in an environment.
    """
    for setting in all_settings(cls):
        key, nested = setting.key, [*classes_in(setting.hint)]
        meaning = _meaning(setting) or _first_paragraph(nested[0][1].__doc__ if nested else "")
        if nested and not nested[0][0]:
            yield ParameterEntry(key, meaning)
            continue
        was, now = _value(default, setting), _value(value, setting)
        allowed = _OPEN if nested else _allowed(setting.hint)
        names = _names_only(was)
        yield ParameterEntry(key, meaning, allowed, names, names if now == was else now)


def _value(values: Mapping[str, Any], setting: Setting) -> Any:
    try:
        return value_at(values, setting.key)
    except (KeyError, TypeError):  # a name of the user's own, or settings that are null
        return setting.default


def _meaning(setting: Setting) -> str:
    """Description of a field.

    Subclasses inherit it, which pydantic does not provide.
    """
    name = setting.key.rpartition(".")[2]
    found = (getattr(each, "__pydantic_fields__", {}).get(name) for each in setting.owner.__mro__)
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
        if not isinstance(values, Mapping):
            return "mapping"
        return f"mapping to {_allowed_by(values).removesuffix(' or null')}"
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
