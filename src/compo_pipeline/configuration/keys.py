"""Files of an environment's configuration: their keys, and where a parameter is set.

Kedro ignores unknown keys. Those of catalog and globals are held against conf/base here; those of
the parameters against the settings classes, by `project.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from compo_pipeline.configuration.settings import SettingsError, nearest

# Every kind of configuration that has keys of its own, as the prefix of its files.
KINDS = ("parameters", "catalog", "globals")
_SUFFIXES = (".yml", ".yaml", ".json")
# The same safe loader in C, where PyYAML was built with it: this runs before every command.
SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 100  # levels of nested values
_MOST_VALUES = 10**5  # of a file
_MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`


def read(folder: Path, kind: str) -> dict[Path, dict[str, Any]]:
    """Unresolved content of an environment's files of one kind (such as catalog), by path.

    Raises:
        SettingsError: a file is no YAML, or gives a key twice.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.suffix in _SUFFIXES and any(part.startswith(kind) for part in parts):
            found[path] = content_of(path)
    return found


def content_of(path: Path) -> dict[str, Any]:
    """Unresolved content of a configuration file, as nested mappings.

    Raises:
        SettingsError: it is no YAML of a mapping, gives a key twice, is nested too deep, has
            aliases for too much, or a `${...}` that cannot be read.
    """
    try:
        content: Any = _parse_yaml(path.read_text(encoding="utf-8")) or {}
        if not isinstance(content, dict):
            raise ValueError(f"expected keys with values, got a {type(content).__name__}")
        _check_values(content)
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{path}: {' '.join(str(error).split())}") from None
    return content


def _parse_yaml(text: str) -> Any:
    """Parse a YAML document; raise an error for a key that a mapping has twice.

    Raises:
        yaml.YAMLError: it is none.
        ValueError: a key is given twice, of which YAML would keep the last.
    """
    depth = 0
    # What follows recurses in C, where a deeper file overflows the stack.
    for event in yaml.parse(text, SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            line = event.start_mark.line + 1 if event.start_mark else "unknown"
            raise ValueError(f"line {line} is nested more than {_DEEPEST} levels deep")
    loader = SafeLoader(text)
    try:
        document = loader.get_single_node()
        if document is None:
            return None
        _refuse_repeated_keys(document)
        return loader.construct_document(document)
    finally:
        loader.dispose()


def _check_values(content: Any) -> None:
    """Raise an error for aliases that stand for too much or themselves, and unreadable `${...}`.

    OmegaConf writes aliases out: some lines can stand for gigabytes.
    """
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar_parser import parse

    waiting, count = [("", content)], 0
    while waiting:
        key, value = waiting.pop()
        count += 1
        if count > _MOST_VALUES:
            raise ValueError(f"with its aliases it has more than {_MOST_VALUES} values")
        if isinstance(value, Mapping):
            waiting += ((f"{key}.{name}", each) for name, each in value.items())
        elif isinstance(value, list):
            waiting += ((f"{key}.{place}", each) for place, each in enumerate(value))
        elif isinstance(value, str) and "${" in value:
            try:
                parse(value)
            except GrammarParseError as error:
                raise ValueError(f"{key[1:]}: {value!r} cannot be resolved: {error}") from None


def _refuse_repeated_keys(document: yaml.Node) -> None:
    """Raise an error for a YAML document in which a mapping has a key twice."""
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


# Holds settings that change how fast a run is, and nothing else; DVC does not read it.
COMPUTE = "parameters_compute.yml"


def check(conf: Path, environment: str) -> None:
    """Refuse files that are no YAML, and keys of catalog and globals that conf/base does not have.

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
    for folder in ("base", environment):
        read(conf / folder, "credentials")
    for kind in KINDS:
        known: dict[str, Any] = {}
        for values in read(conf / "base", kind).values():
            known |= values
        own = read(conf / environment, kind) if environment != "base" else {}
        if kind == "parameters":
            continue
        for path, values in own.items():
            place = f"conf/{path.relative_to(conf)}: "
            # The content of an entry is checked by its dataset.
            problems += (
                f"{place}{each}" for each in _unknown_keys(known, values, kind == "globals")
            )
    if problems:
        raise SettingsError("\n".join(problems))


def _unknown_keys(
    known: Mapping[str, Any], given: Mapping[str, Any], deep: bool, prefix: str = ""
) -> Iterator[str]:
    """Yield an error message for each unknown key; below the first level only if `deep`."""
    for name, value in given.items():
        if str(name).startswith("_"):
            continue
        if name not in known:
            names = [other for other in known if not other.startswith("_")]
            hint = nearest(str(name), names)
            yield f"{prefix}{name}: unknown key{hint} (known: {', '.join(names)})"
        elif deep and isinstance(value, Mapping) and isinstance(known[name], Mapping):
            yield from _unknown_keys(known[name], value, deep, f"{prefix}{name}.")


def place_of(conf: Path, environment: str, runtime: Mapping[str, Any]) -> Callable[[str], str]:
    """Function that maps a dotted key to the file or option that sets it last, for error messages.

    It is `--params: `, a file as in `conf/coco/parameters.yml: `, or empty for a key that nothing
    sets. The files are read when it is called.
    """

    def place(key: str) -> str:
        if _has_key(runtime, key):
            return "--params: "
        for folder in dict.fromkeys((environment, "base")):
            for path, values in read(conf / folder, "parameters").items():
                if _has_key(values, key):
                    return f"conf/{path.relative_to(conf)}: "
        return ""

    return place


def _has_key(values: Any, key: str) -> bool:
    """Whether nested mappings hold a value at a dotted key."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True
