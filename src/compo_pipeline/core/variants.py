"""Named variants: sets of parameters that `--params variant=<name>` stands for.

They are listed under the YAML key `variants`, by method or under `all`, with dotted keys. What a
method says of a name is added to what `all` says of it. `a+b` stands for the values of both; where
they differ, `b` holds. `a+tuned` is variant `a`, a label too, with the best values of a study:
those that stand under the name `a+tuned`, or `--params`.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any

from pydantic import Field

from compo_pipeline.core.plugins import plugin_names
from compo_pipeline.core.settings import SettingsError, leaves, nearest, with_values

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


def applied(
    parameters: Mapping[str, Any], runtime: Mapping[str, Any], environment: str = "base"
) -> dict[str, Any]:
    """The parameters, overridden by the values of the variant that `variant` names.

    Whether there are keys of these names is checked with all other values.

    Args:
        parameters: parameters of the environment, with `--params`.
        runtime: `--params`, which override the variant's values.
        environment: environment whose name labels its own values.

    Raises:
        SettingsError: the variant sets a key that it cannot set; or there is none of that name, a
            similar one exists, and `--params` give no other values; or what `+` combines is not all
            named.
    """
    method, untuned = parameters["method"], _untuned(parameters)[-1]
    known = named(parameters, method)
    for part in untuned.split(PLUS):
        if part in known or part == environment:
            continue
        others = [owner for owner, own in parameters[KEY].items() if (own or {}).get(part)]
        hint = f"; {', '.join(others)} has one" if others else nearest(part, known)
        misspelt = hint and part != "default" and runtime.keys() <= _NAMES
        if misspelt or part != untuned:
            raise SettingsError(
                f"variant: there is no '{part}' of {method}{hint} (known: {', '.join(known)}; a "
                "label of your own stands alone, with the values that it stands for)"
            )
    explicit, changes = {key for key, _ in leaves(runtime)}, {}
    for key, (value, place) in _values_and_places(parameters).items():
        if key.partition(".")[0] in _SHARED or key in _SHARED_KEYS:
            raise SettingsError(f"{place}: '{key}' is shared by all variants of a dataset")
        if key not in explicit:
            changes[key] = value
    if changes:
        given = ", ".join(f"{key}={value}" for key, value in changes.items())
        log.info("Variant '%s' of %s: %s", parameters["variant"], method, given)
    return with_values(parameters, changes)


def place_of(parameters: Mapping[str, Any], key: str) -> str:
    """YAML key of the named variant that sets a dotted key, for errors, empty if none does."""
    found = _values_and_places(parameters)
    return f"{found[key][1]}: " if key in found else ""


def tuned(variant: str, study: str | None = None) -> str:
    """Variant name for the best values of a tuning study: `lora+tuned`, `lora+tuned-<study>`.

    Args:
        variant: variant of the study.
        study: name of the study, if it is not the default one.
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


def _values_and_places(parameters: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Values that the current variant sets, with the YAML key that sets each, by dotted key."""
    owners, names = (ALL, parameters["method"]), _untuned(parameters)
    # Later ones override: a method's values those of `all`, a whole name's those of its parts.
    layers = [
        *product(owners, names[-1].split(PLUS)),
        *((owner, name) for name in reversed(names) for owner in owners),
    ]
    return {
        key: (value, f"{KEY}.{owner}.{name}")
        for owner, name in layers
        for key, value in ((parameters[KEY].get(owner) or {}).get(name) or {}).items()
    }


def _untuned(parameters: Mapping[str, Any]) -> list[str]:
    """Names of the variant without one `+tuned` or `+tuned-<study>` after the other."""
    known, names = named(parameters, parameters["method"]), [str(parameters["variant"])]
    while True:
        base, _, last = names[-1].rpartition(PLUS)
        if not base or last.partition("-")[0] != TUNED or last in known:
            return names
        names.append(base)
