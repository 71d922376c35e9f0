"""Named variants: sets of parameters that `--params variant=<name>` stands for.

They are listed under the YAML key `variants`, by method or under `all`, with dotted keys. What a
method says of a name is added to what `all` says of it. `a+b` stands for the values of both; where
they differ, `b` holds. `a+tuned` is variant `a`, a label too, with the best values of a study:
those that stand under the name `a+tuned`, or `--params`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from itertools import accumulate, product
from typing import Annotated, Any

from pydantic import Field

from compo_pipeline.core.plugins import points_of
from compo_pipeline.core.seeding import digest
from compo_pipeline.core.settings import NUMBERS_TOO, SettingsError, leaves, nearest, with_values

log = logging.getLogger(__name__)

KEY = "variants"
ALL = "all"
PLUS = "+"
TUNED = "tuned"
_ONE = "[A-Za-z0-9][A-Za-z0-9_.-]*"
_LONGEST = 100
_TUNED = re.compile(rf"{TUNED}(-.*)?")
# The value of `variant`, part of the name of a folder.
VariantName = Annotated[
    str, Field(pattern=rf"^{_ONE}(\+{_ONE})*$", max_length=_LONGEST), NUMBERS_TOO
]
_NAMES = frozenset({"dataset", "method", "variant", "seed", "set"})
# Their tables are shared by all variants, or name where results lie.
_SHARED = _NAMES | {"data", "ingest", "validation", "tracking", KEY}
# So is the division of their rows: a variant chooses by views.split which of them train.
_SHARED_KEYS = frozenset({"foils.carve"})
_SHARED |= points_of("compo_pipeline.data_generators").names


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
    method, listed = parameters["method"], parameters[KEY]
    known = {
        name: None
        for owner in (ALL, method)
        for name, own in (listed.get(owner) or {}).items()
        if own is not None
    }
    parts = [each for each in str(parameters["variant"]).split(PLUS) if not _TUNED.fullmatch(each)]
    for part in parts:
        if part in known or part == environment:
            continue
        others = [owner for owner, own in listed.items() if (own or {}).get(part)]
        hint = f"; {', '.join(others)} has one" if others else nearest(part, known)
        if len(parts) > 1 or (hint and part != "default" and runtime.keys() <= _NAMES):
            raise SettingsError(
                f"variant: there is no '{part}' of {method}{hint} (known: "
                f"{', '.join(known)}; a label of your own stands alone, with the values "
                "that it stands for)"
            )
    explicit, changes = dict(leaves(runtime)), {}
    for place, values in layers(parameters):
        for key, value in values.items():
            if key.partition(".")[0] in _SHARED or key in _SHARED_KEYS:
                raise SettingsError(f"{place}: '{key}' is shared by all variants of a dataset")
            if key not in explicit:
                changes[key] = value
    if changes:
        given = ", ".join(f"{key}={value}" for key, value in changes.items())
        log.info("Variant '%s' of %s: %s", parameters["variant"], method, given)
    return with_values(parameters, changes)


def layers(parameters: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """YAML keys of the named variants in use with their values by dotted key, the last one holds.

    A method's values hold over those of `all`, and those of a whole name over those of its parts.
    """
    parts, owners = str(parameters["variant"]).split(PLUS), (ALL, parameters["method"])
    whole = [*accumulate(parts, f"{{}}{PLUS}{{}}".format)][1:]
    places = [*product(owners, parts), *((owner, name) for name in whole for owner in owners)]
    return [
        (f"{KEY}.{owner}.{name}", values)
        for owner, name in places
        if (values := (parameters[KEY].get(owner) or {}).get(name))
    ]


def tuned(variant: str, study: str | None = None) -> str:
    """Variant name for the best values of a tuning study: `lora+tuned`, `lora+tuned-<study>`.

    Args:
        variant: variant of the study.
        study: name of the study, if it is not the default one.
    """
    if study is None:
        return f"{variant}{PLUS}{TUNED}"
    name = f"{variant}{PLUS}{TUNED}-{study}"
    fits = re.fullmatch(_ONE, study) and len(name) <= _LONGEST
    return name if fits else f"{variant}{PLUS}{TUNED}-{digest(study):016x}"
