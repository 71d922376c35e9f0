"""Search spaces: which settings a study searches, over which ranges or choices.

spaces:
  clic:
    training.optimizer.lr: {times: [0.1, 4]}
    clic.objective.positives: {int: [2, 5]}
    clic.objective.unimodal_norm: {categorical: [squared, plain]}
    clic.objective.weights.unimodal: {float: [0.0, 2.0]}

`times` is a log_float whose bounds are multiples of the configured value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna import Trial
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from compo_pipeline.core.settings import (
    SettingsError,
    leaves,
    nearest,
    parse,
    value_at,
    with_values,
)

Value = bool | int | float | str | None
Distribution = FloatDistribution | IntDistribution | CategoricalDistribution
Space = Mapping[str, Distribution]
"""Optuna's distribution of each searched setting, by dotted key."""

_KINDS = ("float", "log_float", "times", "int", "categorical")
# Position of a trial value within a range that is not whole between whole bounds.
_INSIDE = 0.382


def suggest(space: Space, trial: Trial) -> dict[str, Value]:
    """The values that an Optuna trial suggests, by dotted key."""
    values: dict[str, Value] = {}
    for name, within in space.items():
        if isinstance(within, CategoricalDistribution):
            values[name] = trial.suggest_categorical(name, within.choices)
        elif isinstance(within, IntDistribution):
            values[name] = trial.suggest_int(name, within.low, within.high)
        else:
            values[name] = trial.suggest_float(name, within.low, within.high, log=within.log)
    return values


def configured_values(space: Space, parameters: Mapping[str, Any]) -> dict[str, Value]:
    """The configured values of the searched settings, by dotted key."""
    return {name: value_at(parameters, name) for name in space}


def searchable(method: str) -> dict[str, type]:
    """Mapping from YAML key to settings class, of the settings that a study can search."""
    from compo_pipeline.methods.registry import method_type
    from compo_pipeline.training.settings import TrainingSettings

    return {f"{method}.objective": method_type(method).objective_type, "training": TrainingSettings}


def read(
    values: Mapping[str, Any], key: str, configured: Mapping[str, Any], settings: Mapping[str, type]
) -> Space:
    """Parse a search space from YAML values, and check it against the settings.

    Args:
        values: the space as Kedro read it.
        key: YAML key of the space (`spaces.clic`), for errors.
        configured: the parameters that trials change.
        settings: types of settings by YAML key, from `searchable`.

    Raises:
        SettingsError: a key is unknown, a kind or its bounds do not suit, the settings refuse a
            value of the space, or the configured value is outside of it.
    """
    known = {
        f"{prefix}.{leaf}": (prefix, value)
        for prefix in settings
        for leaf, value in leaves(value_at(configured, prefix))
    }
    space = {}
    for name, entry in values.items():
        if name not in known:
            raise SettingsError(
                f"{key}: unknown key '{name}'{nearest(str(name), known)} (a study searches "
                f"settings of {' and '.join(settings)})"
            )
        prefix, own = known[name]
        try:
            space[name] = found = _distribution(entry, own)
            for value in _tried(found):
                changed = with_values(configured, {name: value})
                parse(settings[prefix], value_at(changed, prefix), prefix)
        except (SettingsError, ValueError, TypeError) as error:
            raise SettingsError(f"{key}: '{name}': {error}; got {entry!r}") from None
        if not _contains(found, own):
            raise SettingsError(
                f"{key}: '{name}': the configured value {own!r} is outside of {entry!r}; it is "
                "always the first trial: widen the bounds or change the setting"
            )
    return space


def _distribution(entry: Any, own: Any) -> Distribution:
    """The Optuna distribution of one entry of a search space."""
    # An environment replaces a kind by setting the other one to null.
    given = {kind: bounds for kind, bounds in dict(entry).items() if bounds is not None}
    if len(given) != 1 or not given.keys() <= set(_KINDS):
        raise ValueError(f"expected exactly one of {', '.join(_KINDS)}")
    ((kind, bounds),) = given.items()
    if kind == "categorical":
        return CategoricalDistribution(bounds)
    low, high = bounds
    if kind == "int":
        return IntDistribution(low, high)
    factor = own if kind == "times" else 1
    return FloatDistribution(factor * low, factor * high, log=kind != "float")


def _tried(within: Distribution) -> tuple[Value, ...]:
    """Values of a distribution that the settings must accept: its ends, or all of its choices.

    Of a continuous range one inside too, which a setting that takes whole numbers refuses.
    """
    if isinstance(within, CategoricalDistribution):
        return within.choices
    low, high = within.low, within.high
    if isinstance(within, IntDistribution):
        return low, high
    return low, low + _INSIDE * (high - low), high


def _contains(within: Distribution, value: Any) -> bool:
    """Whether a value is within a range or among the choices."""
    if isinstance(within, CategoricalDistribution):
        return value in within.choices
    return isinstance(value, int | float) and within.low <= value <= within.high
