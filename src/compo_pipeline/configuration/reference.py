"""Reference of the parameters: default, allowed values and meaning of every key."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import pydantic
import yaml
from pydantic.json_schema import PydanticJsonSchemaWarning
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from compo_pipeline.configuration import keys
from compo_pipeline.configuration.settings import SettingsError, nearest, value_at

_TYPES = {"boolean": "true or false", "integer": "integer", "number": "number"}
_TYPES |= {"string": "text", "null": "null", "array": "list"}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_OPEN = "mapping, with names of your own"
_HEAD = """# Parameters

Every key, its default, what it may be and what it means. `conf/base` holds the keys whose value in
the demo is not that of the code; both are defaults here. `compo-pipeline params --markdown` writes
this page; on a terminal, `compo-pipeline params training` lists the keys below one, with `--env`
also the values of an environment.

A key is changed in an environment's files (`conf/<env>/parameters.yml`) or for one run with
`--params`, e.g. `kedro run --params training.epochs=3,seed=1`.
"""
_TABLE = ("| key | default | allowed | meaning |", "| --- | --- | --- | --- |")
_PIPE = r"\|"


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    """Documentation of one YAML key: description, allowed values, default and current value.

    Attributes:
        key: dotted.
        meaning: its description; may be empty.
        type: allowed values in words; empty for a mapping of further keys, whose entries follow.
        default: its value without an environment; of a mapping from the user's own names to
            settings, the names.
        value: its value in the requested environment; of such a mapping, what differs.
        file: of conf/base, for top-level keys that are set there.
    """

    key: str
    meaning: str
    type: str = ""
    default: Any = None
    value: Any = None
    file: str = ""


def _schema_of(settings: type) -> dict[str, Any]:
    """JSON schema of a settings class without references, with docstrings of inherited fields."""
    with warnings.catch_warnings():
        # Defaults without a JSON form are left out: those of conf/base are shown.
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
        content = pydantic.TypeAdapter(settings).json_schema()
    definitions = content.get("$defs", {})
    # Pydantic does not pass docstrings of fields on to subclasses.
    for each in (settings, *_nested_classes(settings)):
        properties = (content if each is settings else definitions[each.__name__])["properties"]
        for base in each.__mro__[1:]:
            for name, field in getattr(base, "__pydantic_fields__", {}).items():
                if field.description:
                    properties[name].setdefault("description", field.description)

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(each) for each in part]
        if not isinstance(part, dict):
            return part
        own = {key: inlined(each) for key, each in part.items() if key not in ("$ref", "$defs")}
        name = part.get("$ref", "").removeprefix("#/$defs/")
        return {**inlined(definitions[name]), **own} if name else own

    schema: dict[str, Any] = inlined(content)
    return schema


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether a schema is that of a mapping whose keys the user chooses."""
    return "properties" not in schema and "additionalProperties" in schema


def _meaning(schema: Mapping[str, Any]) -> str:
    """First paragraph of a schema's description, on one line."""
    return " ".join(schema.get("description", "").partition("\n\n")[0].split())


def _settings_in(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Schema of the settings class in a field, or in its mapping or list; None if absent."""
    if "properties" in schema:
        return schema
    inner = [schema.get("items"), schema.get("additionalProperties")]
    found = (
        _settings_in(each)
        for each in (*schema.get("anyOf", ()), *inner)
        if isinstance(each, Mapping)
    )
    return next(filter(None, found), None)


def _allowed(schema: Mapping[str, Any]) -> str:
    """Allowed values of a schema as text, such as `integer >= 1`."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(map(_allowed, schema["anyOf"]))
    if "prefixItems" in schema:
        return f"[{', '.join(map(_allowed, schema['prefixItems']))}]"
    kind = schema.get("type", "any")
    if kind == "array" and schema.get("items"):
        return f"list of {_allowed(schema['items'])}"
    if kind == "object" and "properties" in schema:
        return f"mapping of {', '.join(schema['properties'])}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"mapping to {_allowed(values) if isinstance(values, Mapping) else 'any'}"
    name = "path" if schema.get("format") == "path" else _TYPES.get(kind, kind)
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return f"{name} {' and '.join(bounds)}".strip()


def _nested_classes(settings: type) -> Iterator[type]:
    """Yield the settings classes of a class's fields, at any depth."""
    for hint in get_type_hints(settings).values():
        if is_dataclass(hint) and isinstance(hint, type):
            yield hint
            yield from _nested_classes(hint)


def collect_entries(
    classes: Mapping[str, type],
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
    files: Mapping[str, str],
    meanings: Mapping[str, str],
) -> list[ParameterEntry]:
    """Entries of all YAML keys for the reference, in the order of the settings classes' fields.

    Args:
        classes: settings classes by key: of all keys ("") and of keys whose own class says less.
        defaults: of all keys, as YAML has them.
        values: of all keys in an environment.
        files: where top-level keys are set, see `files_of`.
        meanings: of top-level keys that the class of all keys does not have.
    """

    def walk(schema: Mapping[str, Any], prefix: str) -> Iterator[ParameterEntry]:
        for name, field in schema["properties"].items():
            key = f"{prefix}{name}"
            settings = _schema_of(classes[key]) if key in classes else _settings_in(field)
            meaning = _meaning(field) or (_meaning(settings) if settings else "")
            entry = ParameterEntry(key, meaning, file=files.get(key, ""))
            default, now = value_at(defaults, key), value_at(values, key)
            if (settings is not None and not _is_open(field)) or key in classes:
                yield entry
                yield from walk(settings or field, f"{key}.")
            elif settings is None:
                if _is_open(field):
                    default, now = _names_only(default), _names_only(now)
                yield replace(entry, type=_allowed(field), default=default, value=now)
            else:
                differing = {name: now[name] for name in now if now[name] != default.get(name)}
                names = list(default)
                yield replace(entry, type=_OPEN, default=names, value=differing or names)
                for name, each in settings["properties"].items():
                    yield ParameterEntry(f"{key}.<name>.{name}", _meaning(each), _allowed(each))

    def sections() -> Iterator[ParameterEntry]:
        """What has classes of its own beside those of the root."""
        known = _schema_of(classes[""])["properties"]
        owner = ""
        for key, cls in classes.items():
            name = key.partition(".")[0]
            if not name or name in known:
                continue
            if name != owner:
                owner = name
                yield ParameterEntry(name, meanings.get(name, ""), file=files.get(name, ""))
            schema = _schema_of(cls)
            yield ParameterEntry(key, _meaning(schema))
            yield from walk(schema, f"{key}.")

    return [*walk(_schema_of(classes[""]), ""), *sections()]


def _names_only(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy of a mapping in which each nested mapping is replaced by the list of its keys."""
    return {name: list(v) if isinstance(v, Mapping) else v for name, v in values.items()}


def chosen(entries: list[ParameterEntry], prefix: str) -> list[ParameterEntry]:
    """Reference entries of a key and of the keys nested in it, else of all keys with that prefix.

    Raises:
        SettingsError: there are none; names the nearest key.
    """
    inside = [entry for entry in entries if f"{entry.key}.".startswith(f"{prefix}.")]
    found = inside or [entry for entry in entries if entry.key.startswith(prefix)]
    if not found:
        same = [entry.key for entry in entries if entry.key.endswith(f".{prefix}")]
        hint = f"; did you mean {' or '.join(same)}?" if same else ""
        known = [entry.key for entry in entries]
        raise SettingsError(f"no key begins with '{prefix}'{hint or nearest(prefix, known)}")
    return found


def show(entries: Sequence[ParameterEntry], env: str, console: Console) -> None:
    """Print parameter entries on a terminal: key, default, type, and the description below."""
    for entry in entries:
        heading = Text(entry.key, style="bold")
        if default := _default_text(entry):
            heading.append(f" = {default}", style="not bold cyan")
        if entry.value != entry.default:
            heading.append(f"  {env}: {_one_line(entry.value)}", style="not bold yellow")
        heading.append(f"  ({entry.type})" if entry.type else "", style="not bold dim")
        console.print(heading, soft_wrap=True)
        if entry.meaning:
            console.print(Padding(Text(entry.meaning), (0, 0, 0, 4)))


def lines(entries: Sequence[ParameterEntry], env: str) -> Iterator[str]:
    """Yield one line per parameter entry: key, default, type, description, value, tab-separated."""
    for entry in entries:
        other = f"{env}: {_one_line(entry.value)}" if entry.value != entry.default else ""
        columns = (entry.key, _default_text(entry), entry.type, entry.meaning, other)
        yield "\t".join(columns).rstrip()


def markdown(entries: Sequence[ParameterEntry]) -> str:
    """The parameter reference as a Markdown page, with a table for each top-level key."""
    page = [_HEAD.strip()]
    single = [entry for entry in entries if "." not in entry.key and entry.type]
    page += ["", "## What names a run", "", *_TABLE, *map(_markdown_row, single)]
    for entry in entries:
        if "." in entry.key:
            page.append(_markdown_row(entry))
        elif not entry.type:
            place = f"In `{entry.file}`. " if entry.file else ""
            about = f"{place}{_escape_html(entry.meaning)}".strip()
            page += ["", f"## {entry.key}", "", about, "", *_TABLE]
    return "\n".join(page) + "\n"


def _markdown_row(entry: ParameterEntry) -> str:
    """Row of a Markdown table for a parameter entry."""
    default = f"`{given}`" if (given := _default_text(entry)) else ""
    cells = (f"`{entry.key}`", default, entry.type, _escape_html(entry.meaning))
    return f"| {' | '.join(cell.replace('|', _PIPE) for cell in cells)} |"


def _escape_html(meaning: str) -> str:
    """Escape `<` in a Markdown text outside of backticks, so that `<name>` is not read as HTML."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", meaning)


def _default_text(entry: ParameterEntry) -> str:
    """Default value of an entry as text; empty for a mapping, and for keys that the user names."""
    return "" if not entry.type or "<" in entry.key else _one_line(entry.default)


def _one_line(value: Any) -> str:
    """A value as YAML on one line."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return str(dumped).removesuffix("...\n").strip()


def files_of(base: Path) -> dict[str, str]:
    """Mapping from top-level key to the file of conf/base that sets it (a folder if several do).

    Args:
        base: the folder conf/base.
    """
    files: dict[str, str] = {}
    for path, content in keys.read(base, "parameters").items():
        for key in content:
            place = path.parent if key in files else path
            files[key] = place.relative_to(base.parents[1]).as_posix()
    return files
