"""Named variants: sets of parameters that `--params variant=<name>` stands for.

They are listed under the YAML key `variants`, by method or under `all`, with dotted keys. What a
method says of a name is added to what `all` says of it. `a+b` stands for the values of both.
`a+tuned` is variant `a`, a label too, with the best values of a study: those that stand under the
name `a+tuned`, or `--params`.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Container, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from compo_pipeline.configuration.plugins import plugin_names
from compo_pipeline.configuration.settings import SettingsError, leaves, nearest, with_values

log = logging.getLogger(__name__)

KEY = "variants"
ALL = "all"
PLUS = "+"
TUNED = "tuned"
_ONE = "[A-Za-z0-9][A-Za-z0-9_.-]*"
_LONGEST = 100
# The value of `variant`, part of the name of a folder; YAML reads a variant 2 as a number.
VariantName = Annotated[
    str,
    Field(pattern=rf"^{_ONE}(\+{_ONE})*$", max_length=_LONGEST, coerce_numbers_to_str=True),
]
_NAMES = frozenset({"dataset", "method", "variant", "seed", "set"})
# Their tables are shared by all variants, or name where results lie.
_SHARED = _NAMES | {"data", "ingest", "validation", "tracking", KEY}
# So is the division of their rows: a variant chooses by views.split which of them train.
_SHARED_KEYS = frozenset({"foils.carve"})
_SHARED |= {*plugin_names("compo_pipeline.data_generators")}


class VariantValue(NamedTuple):
    """A value that a named variant sets, and the YAML key that sets it (`variants.all.lora`)."""

    value: Any
    place: str


def applied(
    parameters: Mapping[str, Any], runtime: Mapping[str, Any], environment: str = "base"
) -> dict[str, Any]:
    """The parameters, overridden by the values of the variant that `variant` names.

    Whether there are keys of these names is checked with all other values.

    Args:
        parameters: of the environment, with `--params`.
        runtime: `--params`, which override the variant's values.
        environment: its name is a label of its own values.

    Raises:
        SettingsError: the variant sets a key that it cannot set; or there is none of that name, a
            similar one exists, and `--params` give no other values; or what `+` combines gives one
            key two values, or is not all named.
    """
    name, method = str(parameters["variant"]), parameters["method"]
    known = named(parameters, method)
    explicit = {key for key, _ in leaves(runtime)}
    untuned = name
    while (base := _strip_tuned(untuned, known)) != untuned:  # a study of tuned values
        untuned = base
    for part in untuned.split(PLUS):
        if part not in known and part != environment:
            labelled = not runtime.keys() <= _NAMES
            _refuse_unknown(part, {**parameters, "variant": untuned}, labelled=labelled)
    found, differing = _merged_values(parameters)
    for key, each in found.items():
        if key.partition(".")[0] in _SHARED or key in _SHARED_KEYS:
            raise SettingsError(f"{each.place}: '{key}' is shared by all variants of a dataset")
    if problems := [text for key, text in differing.items() if key not in explicit]:
        raise SettingsError("\n".join(problems))
    changes = {key: each.value for key, each in found.items() if key not in explicit}
    if changes:
        given = ", ".join(f"{key}={value}" for key, value in changes.items())
        log.info("Variant '%s' of %s: %s", name, method, given)
    return with_values(parameters, changes)


def place_of(parameters: Mapping[str, Any], key: str) -> str:
    """YAML key of the named variant that sets a dotted key, for errors; empty if none does."""
    found, _ = _merged_values(parameters)
    return f"{found[key].place}: " if key in found else ""


def tuned(variant: str, study: str | None = None) -> str:
    """Variant name for the best values of a tuning study: `lora+tuned`, `lora+tuned-<study>`.

    Args:
        variant: of the study.
        study: its name, where it is not the default one, which has another study of this variant.
    """
    if study is None:
        return f"{variant}{PLUS}{TUNED}"
    name = f"{variant}{PLUS}{TUNED}-{study}"
    if re.fullmatch(_ONE, study) and len(name) <= _LONGEST:
        return name
    hashed = hashlib.blake2b(study.encode(), digest_size=8).hexdigest()
    return f"{variant}{PLUS}{TUNED}-{hashed}"


def named(parameters: Mapping[str, Any], method: str) -> dict[str, dict[str, Any]]:
    """Mapping from variant name to its values by dotted key, of a method's named variants."""
    found: dict[str, dict[str, Any]] = {}
    for owner in (ALL, method):
        for name, values in (parameters[KEY].get(owner) or {}).items():
            if values is not None:
                found[name] = found.get(name, {}) | values
    return found


def _merged_values(parameters: Mapping[str, Any]) -> tuple[dict[str, VariantValue], dict[str, str]]:
    """Values that the current variant sets by key, and errors for keys set to two values."""
    found: dict[str, VariantValue] = {}
    differing: dict[str, str] = {}
    whole = f"{KEY}.{parameters['method']}.{parameters['variant']}"
    for owner, names in _value_layers(parameters):
        layer: dict[str, VariantValue] = {}
        clashes: dict[str, str] = {}
        for name in names:
            place = f"{KEY}.{owner}.{name}"
            for key, value in _variant_values(parameters, owner, name).items():
                other = layer.setdefault(key, VariantValue(value, place))
                if other.value != value:
                    clashes[key] = (
                        f"{place}: {key} is {value}, but {other.value} in {other.place}; say which "
                        f"one by {whole} or --params {key}=<value>"
                    )
        differing = {key: text for key, text in differing.items() if key not in layer} | clashes
        found |= layer
    return found, differing


def _variant_values(parameters: Mapping[str, Any], owner: str, name: str) -> Mapping[str, Any]:
    """Values that a method or `all` defines for one named variant; empty if it defines none."""
    return (parameters[KEY].get(owner) or {}).get(name) or {}


def _value_layers(parameters: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield (method or `all`, variant names) whose values form a variant; later ones override."""
    name, owners = str(parameters["variant"]), (ALL, parameters["method"])
    untuned, parts = _strip_tuned(name, named(parameters, parameters["method"])), name.split(PLUS)
    if untuned != name:
        yield from _value_layers({**parameters, "variant": untuned})
    else:
        yield from ((owner, parts) for owner in owners)
    if len(parts) > 1:
        yield from ((owner, [name]) for owner in owners)


def _strip_tuned(name: str, known: Container[str]) -> str:
    """Variant name without its suffix `+tuned` or `+tuned-<study>`."""
    base, _, last = name.rpartition(PLUS)
    return base if base and last.partition("-")[0] == TUNED and last not in known else name


def _refuse_unknown(name: str, parameters: Mapping[str, Any], *, labelled: bool) -> None:
    """Raise an error for an undefined variant in a combination, or one that looks misspelt."""
    variant, method = str(parameters["variant"]), parameters["method"]
    combined = name != variant
    if labelled and not combined:
        return
    others = [owner for owner in parameters[KEY] if _variant_values(parameters, owner, name)]
    if others:
        raise SettingsError(f"variant: '{name}' is one of {', '.join(others)}, not of {method}")
    known = named(parameters, method)
    hint = nearest(name, known)
    if combined:
        raise SettingsError(
            f"variant: '{variant}' combines named variants, and there is no '{name}' of "
            f"{method}{hint} (known: {', '.join(known)}; a label of your own stands alone)"
        )
    if hint and name != "default":
        raise SettingsError(
            f"variant: there is no '{name}' of {method}{hint} (known: {', '.join(known)}; a label "
            "of your own goes with the values that it stands for)"
        )
