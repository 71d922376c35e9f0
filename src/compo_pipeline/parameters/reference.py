"""Reference of the parameters: default, allowed values and meaning of every key of conf/base.

Types, bounds and meanings come from the settings classes, the rest from comments in the YAML files.
"""

from __future__ import annotations

import pkgutil
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic.json_schema import PydanticJsonSchemaWarning
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from compo_pipeline.configuration import SettingsError, nearest, value_at
from compo_pipeline.parameters import keys

_TYPES = {"boolean": "true or false", "integer": "integer", "number": "number"}
_TYPES |= {"string": "text", "null": "null", "array": "list"}
_YAML_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text", list: "list"}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_COMMENT = re.compile(r"(?:^|\s)#\s?(.*)$")
_OPEN = "mapping, with names of your own"
_HEAD = """# Parameters

Every key of `conf/base`, its default, what it may be and what it means. This page is written by
`compo-pipeline params --markdown > docs/parameters.md`; on a terminal, `compo-pipeline params
training` lists the keys below one, with `--env` also the values of an environment.

A key is changed in an environment's files (`conf/<env>/parameters.yml`) or for one run with
`--params`, e.g. `kedro run --params training.epochs=3,seed=1`.
"""
_TABLE = ("| key | default | allowed | meaning |", "| --- | --- | --- | --- |")
_PIPE = r"\|"


@dataclass(frozen=True, slots=True)
class ParameterEntry:
    """A key of the parameters.

    Attributes:
        key: dotted.
        meaning: its description; may be empty.
        type: allowed values in words; empty for a mapping of further keys, whose entries follow.
        default: its value in conf/base; of a mapping from the user's own names to settings, the
            names.
        value: its value in the requested environment; of such a mapping, what differs.
        file: of conf/base, for top-level keys.
    """

    key: str
    meaning: str
    type: str = ""
    default: Any = None
    value: Any = None
    file: str = ""


@dataclass(frozen=True, slots=True)
class _Schema:
    """JSON schema of a type, or of a field of a settings class."""

    content: Mapping[str, Any]
    definitions: Mapping[str, Any]

    @classmethod
    def of(cls, settings: type) -> _Schema:
        with warnings.catch_warnings():
            # Defaults without a JSON form are left out: those of conf/base are shown.
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            content = pydantic.TypeAdapter(settings).json_schema()
        # Pydantic does not pass docstrings of fields on to subclasses.
        for base in settings.__mro__[1:]:
            for name, field in getattr(base, "__pydantic_fields__", {}).items():
                if field.description:
                    content["properties"][name].setdefault("description", field.description)
        return cls(content, content.get("$defs", {}))

    def within(self, content: Mapping[str, Any]) -> _Schema:
        return _Schema(content, self.definitions)

    def resolved(self) -> _Schema:
        name = self.content.get("$ref", "").removeprefix("#/$defs/")
        return self.within(self.definitions[name]) if name else self

    @property
    def meaning(self) -> str:
        """The first paragraph of the description."""
        return " ".join(self.content.get("description", "").partition("\n\n")[0].split())

    def fields(self) -> dict[str, _Schema]:
        """Schemas of the fields of a settings class, with their meanings."""
        properties = self.content.get("properties", {})
        return {name: self.within(field) for name, field in properties.items()}

    def settings(self) -> _Schema | None:
        """The settings class that a field holds, or that its mapping or list has as values."""
        schema = self.resolved()
        if "properties" in schema.content:
            return schema
        inner = [*schema.content.get("anyOf", ()), schema.content.get("items")]
        inner.append(schema.content.get("additionalProperties"))
        found = (schema.within(each).settings() for each in inner if isinstance(each, Mapping))
        return next(filter(None, found), None)

    def allowed(self) -> str:
        """The allowed values in words."""
        content = self.resolved().content
        if "const" in content:
            return str(content["const"])
        if "enum" in content:
            return " or ".join(map(str, content["enum"]))
        if "anyOf" in content:
            return " or ".join(self.within(each).allowed() for each in content["anyOf"])
        if "prefixItems" in content:
            items = (self.within(each).allowed() for each in content["prefixItems"])
            return f"[{', '.join(items)}]"
        kind = content.get("type", "any")
        if kind == "array" and content.get("items"):
            return f"list of {self.within(content['items']).allowed()}"
        if kind == "object":
            values = content.get("additionalProperties")
            inner = self.within(values).allowed() if isinstance(values, Mapping) else "any"
            return f"mapping to {inner}"
        name = "path" if content.get("format") == "path" else _TYPES.get(kind, kind)
        bounds = [f"{sign} {content[key]}" for key, sign in _BOUNDS.items() if key in content]
        return f"{name} {' and '.join(bounds)}".strip()


def collect(
    conf: Path, env: str, classes: Mapping[str, str], prefix: str = ""
) -> list[ParameterEntry]:
    """All keys in the order of the files, or those of the top-level keys that a prefix begins with.

    Args:
        conf: the project's configuration folder.
        env: the environment whose values are given beside the defaults.
        classes: import paths of settings classes by YAML key.
        prefix: see `chosen`; all keys are given where none begins with it.

    Raises:
        SettingsError: the environment has an unknown key, or does not exist.
    """
    keys.check(conf, env, {})
    base = conf / "base"
    tree, open_mappings = keys.known_keys(base, "parameters")
    top = prefix.partition(".")[0]
    tree = {name: value for name, value in tree.items() if name.startswith(top)} or tree
    defaults = _load(conf, "base")
    own = env != "base" and any(keys.read(conf / env, kind) for kind in keys.KINDS)
    values = _load(conf, env) if own else defaults
    comments = _comments(base, "parameters") | _comments(base, "globals")
    files = _files(base)

    def walk(
        tree: Mapping[str, Any], prefix: str, parent: _Schema | None
    ) -> Iterator[ParameterEntry]:
        fields = parent.fields() if parent else {}
        for name, value in tree.items():
            if name.startswith("_"):
                continue
            key = f"{prefix}{name}"
            field = fields.get(name)
            settings = field.settings() if field else None
            if key in classes:
                settings = _Schema.of(pkgutil.resolve_name(classes[key]))
            own, comment = settings.meaning if settings else "", comments.get(key, "")
            # The comment at the top of a file is about its top-level key.
            meaning = (field.meaning if field else "") or (
                own or comment if prefix else comment or own
            )
            entry = ParameterEntry(key, meaning, file=files[key] if not prefix else "")
            if isinstance(value, Mapping) and key not in open_mappings:
                yield entry
                yield from walk(value, f"{key}.", settings)
                continue
            default, now = value_at(defaults, key), value_at(values, key)
            if settings is None:
                if key in open_mappings:
                    allowed, default, now = _OPEN, _names(default), _names(now)
                else:
                    allowed = field.allowed() if field else _YAML_TYPES[type(default)]
                yield replace(entry, type=allowed, default=default, value=now)
                continue
            differing = {name: now[name] for name in now if now[name] != default.get(name)}
            names = list(default)
            yield replace(entry, type=_OPEN, default=names, value=differing or names)
            for name, each in settings.fields().items():
                yield ParameterEntry(f"{key}.<name>.{name}", each.meaning, each.allowed())

    return list(walk(tree, "", None))


def _names(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """An open mapping, with the names alone of the mappings that it holds."""
    return {name: list(v) if isinstance(v, Mapping) else v for name, v in values.items()}


def chosen(entries: list[ParameterEntry], prefix: str) -> list[ParameterEntry]:
    """The entry of a key and those below it, or else those whose key begins with a prefix.

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
    """Print entries on a terminal: a heading each, its meaning below."""
    for entry in entries:
        heading = Text(entry.key, style="bold")
        if default := _default(entry):
            heading.append(f" = {default}", style="not bold cyan")
        if entry.value != entry.default:
            heading.append(f"  {env}: {_one_line(entry.value)}", style="not bold yellow")
        heading.append(f"  ({entry.type})" if entry.type else "", style="not bold dim")
        console.print(heading, soft_wrap=True)
        if entry.meaning:
            console.print(Padding(Text(entry.meaning), (0, 0, 0, 4)))


def lines(entries: Sequence[ParameterEntry], env: str) -> Iterator[str]:
    """A line per entry: key, default, type, meaning and differing value, separated by tabs."""
    for entry in entries:
        other = f"{env}: {_one_line(entry.value)}" if entry.value != entry.default else ""
        columns = (entry.key, _default(entry), entry.type, entry.meaning, other)
        yield "\t".join(columns).rstrip()


def markdown(entries: Sequence[ParameterEntry]) -> str:
    """A page with a table for each top-level mapping; single values come first."""
    page = [_HEAD.strip()]
    single = [entry for entry in entries if "." not in entry.key and entry.type]
    page += ["", "## What names a run", "", *_TABLE, *map(_row, single)]
    for entry in entries:
        if "." in entry.key:
            page.append(_row(entry))
        elif not entry.type:
            about = f"In `{entry.file}`. {_escaped(entry.meaning)}".strip()
            page += ["", f"## {entry.key}", "", about, "", *_TABLE]
    return "\n".join(page) + "\n"


def _row(entry: ParameterEntry) -> str:
    default = f"`{given}`" if (given := _default(entry)) else ""
    cells = (f"`{entry.key}`", default, entry.type, _escaped(entry.meaning))
    return f"| {' | '.join(cell.replace('|', _PIPE) for cell in cells)} |"


def _escaped(meaning: str) -> str:
    """A text in which no `<name>` is read as HTML; inside backticks none is."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", meaning)


def _default(entry: ParameterEntry) -> str:
    return "" if not entry.type or "<" in entry.key else _one_line(entry.default)


def _one_line(value: Any) -> str:
    """A value as YAML on one line."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return str(dumped).removesuffix("...\n").strip()


def _load(conf: Path, env: str) -> dict[str, Any]:
    """The parameters of an environment, as Kedro passes them to nodes."""
    from kedro.framework.project import settings

    arguments = settings.CONFIG_LOADER_ARGS
    loader = settings.CONFIG_LOADER_CLASS(conf_source=str(conf), env=env, **arguments)
    parameters: dict[str, Any] = loader["parameters"]
    return parameters


def _files(base: Path) -> dict[str, str]:
    """The file of every top-level key; for a key of several files, their folder."""
    files: dict[str, str] = {}
    for path, content in keys.read(base, "parameters").items():
        for key in content:
            place = path.parent if key in files else path
            files[key] = place.relative_to(base.parents[1]).as_posix()
    return files


def _comments(folder: Path, kind: str) -> dict[str, str]:
    """The comment of every key: after its value, or else on the lines directly above it."""
    found: dict[str, str] = {}

    def walk(node: yaml.Node | None, prefix: str, lines: list[str]) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for name, value in node.value:
            key, place = f"{prefix}{name.value}", name.start_mark
            # The value of an alias is elsewhere in the file; a block begins below its key.
            below = value.start_mark.line != place.line
            rest = lines[place.line][(name if below else value).end_mark.column :]
            behind = "" if not below and value.end_mark.line != place.line else rest
            match = _COMMENT.search(behind)
            comment = match[1] if match else _above(lines, place.line, place.column)
            if not prefix and isinstance(value, yaml.MappingNode) and len(value.value) == 1:
                # The comment at the top of a file with a single key below the top-level one.
                found[f"{key}.{value.value[0][0].value}"] = comment
            elif comment or key not in found:
                found[key] = comment
            walk(value, f"{key}.", lines)

    for path in keys.read(folder, kind):
        text = path.read_text(encoding="utf-8")
        walk(yaml.compose(text, keys.SafeLoader), "", text.splitlines())
    return found


def _above(lines: list[str], line: int, column: int) -> str:
    start = line
    while start and lines[start - 1].startswith(f"{' ' * column}#"):
        start -= 1
    return " ".join(text.strip().lstrip("# ") for text in lines[start:line])
