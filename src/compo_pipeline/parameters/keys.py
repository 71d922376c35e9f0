"""Check the keys of environments and of `--params`: unknown keys, which Kedro ignores, are errors.

The known keys are those of conf/base. Mappings whose keys the user chooses are listed under a
top-level `_open` in their file of conf/base; null removes one of conf/base's names from such a
mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from compo_pipeline.configuration import SettingsError, nearest

# Every kind of configuration that has keys of its own, as the prefix of its files.
KINDS = ("parameters", "catalog", "globals")
_SUFFIXES = (".yml", ".yaml", ".json")
# The same safe loader in C, where PyYAML was built with it: this runs before every command.
SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`


def read(folder: Path, kind: str) -> dict[Path, dict[str, Any]]:
    """The unresolved files of one kind in an environment's folder, by Kedro's rules of names.

    Raises:
        SettingsError: a file is no YAML, or gives a key twice.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix in _SUFFIXES and any(part.startswith(kind) for part in parts):
            try:
                found[path] = _content(path.read_text(encoding="utf-8")) or {}
            except (yaml.YAMLError, ValueError, RecursionError) as error:
                raise SettingsError(f"{path}: {error}") from None
    return found


def _content(text: str) -> Any:
    """The value of a YAML document.

    Raises:
        yaml.YAMLError: it is none.
        ValueError: a key is given twice, of which YAML would keep the last.
    """
    loader = SafeLoader(text)
    try:
        document = loader.get_single_node()
        if document is None:
            return None
        _refuse_repeated(document)
        return loader.construct_document(document)
    finally:
        loader.dispose()


def _refuse_repeated(document: yaml.Node) -> None:
    waiting, seen = [("", document)], {id(document)}
    while waiting:
        prefix, node = waiting.pop()
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise ValueError(
                    f"the key {prefix}{key.value} is given twice, in lines {lines[key.value]} and "
                    f"{line}; remove or rename one"
                )
            lines[key.value] = line
            if id(value) not in seen:
                seen.add(id(value))
                waiting.append((f"{prefix}{key.value}.", value))


def check(conf: Path, environment: str, runtime: Mapping[str, Any]) -> set[str]:
    """Refuse keys of an environment's files or of `--params` that conf/base does not name.

    Returns:
        The parameters' open mappings, for `without_null`.

    Raises:
        SettingsError: naming every unknown key, its file and the nearest known one; or there
            is no such environment.
    """
    folders = sorted(folder.name for folder in conf.iterdir() if folder.is_dir())
    if environment not in folders:
        hint = nearest(environment, folders)
        raise SettingsError(
            f"--env: there is no folder conf/{environment}{hint} (known: {', '.join(folders)})"
        )
    problems: list[str] = []
    opened: set[str] = set()
    for kind in KINDS:
        known, open_mappings = known_keys(conf / "base", kind)
        if kind == "catalog":
            # The content of an entry is checked by its dataset.
            open_mappings = set(known)
        given: dict[str, Mapping[str, Any]] = {}
        if environment != "base":
            given = {
                f"conf/{path.relative_to(conf)}": values
                for path, values in read(conf / environment, kind).items()
            }
        if kind == "parameters":
            given["--params"] = runtime
            opened = open_mappings
        for place, values in given.items():
            problems += [
                f"{place}: {problem}" for problem in _unknown(known, values, open_mappings)
            ]
    if problems:
        raise SettingsError("\n".join(problems))
    return opened


def known_keys(folder: Path, kind: str) -> tuple[dict[str, Any], set[str]]:
    """One tree of all files of a kind in conf/base, and the dotted names of its open mappings."""
    tree: dict[str, Any] = {}
    open_mappings: set[str] = set()
    for values in read(folder, kind).values():
        open_mappings.update(values.get("_open", ()))
        _merge(tree, values)
    return tree, open_mappings


def without_null(values: Mapping[str, Any], open_mappings: set[str]) -> dict[str, Any]:
    """The values without names that an environment removed from open mappings with null."""

    def walk(mapping: Mapping[str, Any], path: str) -> dict[str, Any]:
        result = {}
        for name, value in mapping.items():
            inner = f"{path}.{name}" if path else str(name)
            if value is None and path in open_mappings:
                continue
            result[name] = walk(value, inner) if isinstance(value, Mapping) else value
        return result

    return walk(values, "")


def _merge(tree: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(tree.get(name), dict):
            _merge(tree[name], value)
        else:
            tree[name] = dict(value) if isinstance(value, Mapping) else value


def _unknown(
    tree: Mapping[str, Any], given: Mapping[str, Any], open_mappings: set[str], prefix: str = ""
) -> Iterator[str]:
    """Describe each key of `given`, all under `prefix`, that the tree does not name."""
    known = tree
    for parent in prefix.split(".")[:-1]:
        known = known[parent]
    for key, value in given.items():
        name, path = str(key), f"{prefix}{key}"
        if name.startswith("_"):
            continue
        if name not in known:
            siblings = sorted(other for other in known if not other.startswith("_"))
            hint = _hint(tree, siblings, name)
            yield f"unknown key '{path}'{hint} (known here: {', '.join(siblings)})"
        elif path in open_mappings:
            continue
        elif isinstance(value, Mapping) and isinstance(known[name], Mapping):
            yield from _unknown(tree, value, open_mappings, f"{path}.")
        elif isinstance(value, Mapping):
            yield f"'{path}' is a single value, got the keys {', '.join(map(str, value))} under it"
        elif isinstance(known[name], Mapping):
            names = ", ".join(f"{path}.{part}" for part in known[name])
            yield f"'{path}' is a mapping, got {value!r}: set one of {names}"


def _hint(tree: Mapping[str, Any], siblings: list[str], name: str) -> str:
    """Name the key meant: the same name elsewhere, a near name here, a near name elsewhere."""
    leaves = dict(_paths(tree))
    same = [path for path, leaf in leaves.items() if leaf == name]
    if same:
        return f"; did you mean {' or '.join(repr(path) for path in same[:3])}?"
    return nearest(name, siblings) or nearest(name, leaves)


def _paths(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path and last name of every key below a tree."""
    for key, value in tree.items():
        yield f"{prefix}{key}", str(key)
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")
