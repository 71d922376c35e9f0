"""Every key of conf/base: default and, from its settings class or a YAML comment, its meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compo_pipeline import keys
from compo_pipeline.beforehand import SETTINGS
from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.methods.registry import METHODS
from compo_pipeline.reference.classes import Field, SettingsClass, method_class, settings_class

# Settings of caption editors and image generators: parsed by the node that uses them.
_OF_COUNTERFACTUALS = {
    "counterfactuals.rules": "counterfactuals.editors.rules.RulesSettings",
    "counterfactuals.endpoint": "counterfactuals.editors.endpoint.EndpointSettings",
    "counterfactuals.transformers": "counterfactuals.editors.local.TransformersSettings",
    "counterfactuals.scenes": "scenes.counterfactuals.SceneEditSettings",
    "counterfactuals.diffusion": "counterfactuals.generators.settings.DiffusionSettings",
}
_CLASSES = {**SETTINGS, **_OF_COUNTERFACTUALS}
_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text", list: "list"}
_COMMENT = re.compile(r"(?:^|\s)#\s?(.*)$")
_NAMED = "mapping, with names of your own"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of the parameters.

    Attributes:
        key: dotted.
        meaning: what it means; empty where nobody says so.
        type: what it may be, in words; empty for a mapping of further keys, whose defaults follow.
        default: its value in conf/base; of a mapping with settings under names of the user's own,
            the names.
        value: its value in the environment asked for; of such a mapping, what differs.
        file: of conf/base, for top-level keys.
    """

    key: str
    meaning: str
    type: str = ""
    default: Any = None
    value: Any = None
    file: str = ""


def collect(conf: Path, env: str) -> list[Entry]:
    """All keys in the order of the files.

    Args:
        conf: the project's configuration folder.
        env: the environment whose values are given beside the defaults.

    Raises:
        SettingsError: the environment has a mistaken key, or is not there.
    """
    keys.check(conf, env, {})
    base = conf / "base"
    tree, open_mappings = keys.known_keys(base, "parameters")
    defaults, values = _resolved(conf, "base"), _resolved(conf, env)
    comments = _comments(base, "parameters") | _comments(base, "globals")
    files: dict[str, str] = {}
    for path, read in keys.read(base, "parameters").items():
        for key in read:
            # A key of several files, one for each key below it: their folder.
            place = path.parent if key in files else path
            files[key] = place.relative_to(conf.parent).as_posix()

    def walk(tree: Mapping[str, Any], prefix: str, known: SettingsClass | None) -> Iterator[Entry]:
        for name, value in tree.items():
            if name.startswith("_"):
                continue
            key = f"{prefix}{name}"
            field = known.fields.get(name, Field("", "")) if known else Field("", "")
            inner = field.inner or _class_of(key)
            own, comment = inner.meaning if inner else "", comments.get(key, "")
            # A file of conf/base begins with what its top-level key is for.
            meaning = field.meaning or (own or comment if prefix else comment or own)
            entry = Entry(key, meaning, file=files[key] if not prefix else "")
            if isinstance(value, Mapping) and key not in open_mappings:
                yield entry
                yield from walk(value, f"{key}.", inner)
                continue
            default, now = _at(defaults, key), _at(values, key)
            if inner is None:
                type_ = _NAMED if key in open_mappings else field.type or _TYPES[type(default)]
                yield replace(entry, type=type_, default=default, value=now)
                continue
            # Settings under names of the user's own.
            differing = {name: now[name] for name in now if now[name] != default.get(name)}
            names = list(default)
            yield replace(entry, type=_NAMED, default=names, value=differing or names)
            for name, each in inner.fields.items():
                yield Entry(f"{key}.<name>.{name}", each.meaning, each.type)

    return list(walk(tree, "", None))


def chosen(entries: list[Entry], prefix: str) -> list[Entry]:
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


def _class_of(key: str) -> SettingsClass | None:
    """The class that a node parses what stands under a key with."""
    if key in _CLASSES:
        return settings_class(_CLASSES[key])
    method, _, part = key.partition(".")
    if method in METHODS and part in ("views", "objective"):
        return method_class(METHODS[method].path, part)
    return None


def _resolved(conf: Path, env: str) -> dict[str, Any]:
    """The parameters of an environment, as Kedro gives them to nodes."""
    from kedro.framework.project import settings

    arguments = settings.CONFIG_LOADER_ARGS
    loader = settings.CONFIG_LOADER_CLASS(conf_source=str(conf), env=env, **arguments)
    parameters: dict[str, Any] = loader["parameters"]
    return parameters


def _at(parameters: Mapping[str, Any], key: str) -> Any:
    value: Any = parameters
    for part in key.split("."):
        value = value[part]
    return value


def _comments(folder: Path, kind: str) -> dict[str, str]:
    """The comment of every key: behind its value, or else on the lines directly above it."""
    import yaml

    found: dict[str, str] = {}

    def walk(node: yaml.Node | None, prefix: str, lines: list[str]) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for name, value in node.value:
            key, place = f"{prefix}{name.value}", name.start_mark
            # An alias stands elsewhere; a block begins below its key.
            below = value.start_mark.line != place.line
            rest = lines[place.line][(name if below else value).end_mark.column :]
            behind = "" if not below and value.end_mark.line != place.line else rest
            match = _COMMENT.search(behind)
            comment = match[1] if match else _above(lines, place.line, place.column)
            if not prefix and isinstance(value, yaml.MappingNode) and len(value.value) == 1:
                # The file is about the one key below.
                found[f"{key}.{value.value[0][0].value}"] = comment
            elif comment or key not in found:
                found[key] = comment
            walk(value, f"{key}.", lines)

    for path in keys.read(folder, kind):
        text = path.read_text(encoding="utf-8")
        walk(yaml.compose(text, yaml.SafeLoader), "", text.splitlines())
    return found


def _above(lines: list[str], line: int, column: int) -> str:
    start = line
    while start and lines[start - 1].startswith(f"{' ' * column}#"):
        start -= 1
    return " ".join(text.strip().lstrip("# ") for text in lines[start:line])
