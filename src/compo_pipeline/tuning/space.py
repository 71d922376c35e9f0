"""Search spaces: which settings a study searches, over which ranges or choices.

spaces:
  clic:
    training.optimizer.lr: {times: [0.1, 4]}
    clic.objective.positives: {int: [2, 5]}
    clic.objective.unimodal_norm: {categorical: [squared, plain]}
    clic.objective.weights.unimodal:
      float: [0.0, 2.0]
      when: {clic.objective.unimodal_norm: [squared]}

`times` is a log_float whose bounds are multiples of the configured value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Any

from optuna import Trial
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from compo_pipeline.configuration import keys
from compo_pipeline.configuration.settings import (
    SettingsError,
    leaves,
    nearest,
    parse,
    value_at,
    with_values,
)

Value = bool | int | float | str | None
Distribution = FloatDistribution | IntDistribution | CategoricalDistribution

_RANGES = ("float", "log_float", "times", "int")
_KINDS = (*_RANGES, "categorical")
# Position of a trial value within a range that is not whole between whole bounds.
_INSIDE = 0.382


@dataclass(frozen=True, slots=True)
class Parameter:
    """A searched setting: its dotted key, its Optuna distribution and its condition."""

    name: str
    distribution: Distribution
    when: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Values of earlier parameters under which the setting is searched; empty: always."""

    def active(self, values: Mapping[str, Value]) -> bool:
        """Whether the parameter is searched, given the values of earlier parameters."""
        return all(key in values and values[key] in allowed for key, allowed in self.when.items())

    def suggest(self, trial: Trial) -> Value:
        """The value that an Optuna trial suggests for the parameter."""
        within = self.distribution
        if isinstance(within, CategoricalDistribution):
            return trial.suggest_categorical(self.name, within.choices)
        if isinstance(within, IntDistribution):
            return trial.suggest_int(self.name, within.low, within.high)
        return trial.suggest_float(self.name, within.low, within.high, log=within.log)

    def contains(self, value: Any) -> bool:
        """Whether a value is within the parameter's range or among its choices."""
        within = self.distribution
        if isinstance(within, CategoricalDistribution):
            return value in within.choices
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        whole = isinstance(within, FloatDistribution) or value == int(value)
        return whole and within.low <= value <= within.high

    def cast(self, value: Any) -> Value:
        """Convert a value of the range or choices to the type that a trial's value has."""
        within = self.distribution
        if isinstance(within, CategoricalDistribution):
            return within.choices[within.choices.index(value)]
        return int(value) if isinstance(within, IntDistribution) else float(value)

    @property
    def extremes(self) -> tuple[Value, ...]:
        """Lower and upper bound of the parameter's range, or all of its choices."""
        within = self.distribution
        if isinstance(within, CategoricalDistribution):
            return within.choices
        return within.low, within.high

    @property
    def described(self) -> str:
        """The parameter's range or choices as text."""
        within = self.distribution
        if isinstance(within, CategoricalDistribution):
            return ", ".join(map(str, within.choices))
        return f"{within.low:g} to {within.high:g}{' (log scale)' if within.log else ''}"


@dataclass(frozen=True, slots=True)
class Space:
    """Search space of a study: its parameters, whose conditions refer to earlier ones."""

    parameters: tuple[Parameter, ...]

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """A trial's values by dotted key; leaves out parameters whose condition is not met."""
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.active(values):
                values[parameter.name] = parameter.suggest(trial)
        return values

    def configured(self, parameters: Mapping[str, Any]) -> dict[str, Value]:
        """The configured values of the searched settings by dotted key, with types as in a trial.

        Raises:
            SettingsError: a key is not configured, or its value is outside the space.
        """
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.active(values):
                value = configured_value(parameters, parameter.name)
                if not parameter.contains(value):
                    raise SettingsError(
                        f"{parameter.name}: {value!r} is outside the search space, "
                        f"{parameter.described}"
                    )
                values[parameter.name] = parameter.cast(value)
        return values

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Whether a trial of this space could have exactly these values.

        Optuna runs an enqueued number that is out of bounds after a warning, and fails on an
        unknown choice.
        """
        active = [parameter for parameter in self.parameters if parameter.active(values)]
        return {one.name for one in active} == values.keys() and all(
            one.contains(values[one.name]) for one in active
        )


def configured_value(parameters: Mapping[str, Any], name: str) -> Any:
    """The configured value at a dotted key.

    Raises:
        SettingsError: the key is not configured.
    """
    try:
        return value_at(parameters, name)
    except (KeyError, TypeError):
        message = f"{name}: searched, but not configured; configure a value first"
        raise SettingsError(message) from None


def searchable(method: str) -> dict[str, type]:
    """Mapping from YAML key to settings class, of the settings that a study can search."""
    from compo_pipeline.methods.registry import method_type
    from compo_pipeline.training.settings import TrainingSettings

    return {f"{method}.objective": method_type(method).objective_type, "training": TrainingSettings}


def read(
    values: Mapping[str, Any],
    key: str,
    configured: Mapping[str, Any],
    settings: Mapping[str, type],
    conf: Path = Path("conf"),
) -> Space:
    """Parse a search space from YAML values, and check it against the settings.

    Args:
        values: the space as Kedro read it.
        key: its YAML key (`spaces.clic`), for errors.
        configured: the parameters that trials change.
        settings: types of settings by YAML key, from `searchable`.
        conf: folder of all environments, to name the file of an error.

    Raises:
        SettingsError: with file and key: an unknown key, an unsuitable kind, bounds or choices
            that the settings refuse, a condition that cannot be met, or a configured value that is
            outside the space.
    """
    if not isinstance(values, Mapping) or not values:
        raise SettingsError(f"{key}: expected settings to search, got {values!r}")
    name = next(iter(values))
    parameters: list[Parameter] = []
    try:
        for name, entry in values.items():
            distribution = _distribution(name, entry, configured, settings)
            when = _condition(name, entry.get("when") or {}, parameters)
            parameters.append(Parameter(name, distribution, when))
        space = Space(tuple(parameters))
        try:
            space.configured(configured)
        except SettingsError as error:
            name = str(error).partition(":")[0]
            raise SettingsError(
                f"{error}\nThe configured values are always the first trial: widen the bounds "
                f"({key}, also possible in an environment's parameters.yml) or change the setting"
            ) from None
        for chosen in _extremes(space):
            name = next(iter(chosen))
            _check_values(chosen, space, configured, settings)
    except SettingsError as error:
        files = ", ".join(_defining_files(conf, key, name))
        raise SettingsError(f"{files}{': ' if files else ''}{key}: {error}") from None
    return space


def _distribution(
    name: str, entry: Any, configured: Mapping[str, Any], settings: Mapping[str, type]
) -> Distribution:
    """The Optuna distribution of one entry of a search space."""
    known = {
        f"{prefix}.{leaf}": value
        for prefix in settings
        for leaf, value in leaves(configured_value(configured, prefix))
    }
    if name not in known:
        raise SettingsError(
            f"unknown key '{name}'{nearest(str(name), known)} (a study searches settings of "
            f"{' and '.join(settings)})"
        )
    own = known[name]
    if isinstance(own, list | tuple):
        raise SettingsError(f"'{name}' holds several values; only single values are searched")
    # An environment replaces a kind by setting the other one to null.
    given = entry if isinstance(entry, Mapping) else {str(entry): None}
    kinds = [kind for kind, bounds in given.items() if bounds is not None and kind != "when"]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        got = ", ".join(map(str, kinds)) or repr(entry)
        raise SettingsError(
            f"'{name}': expected exactly one of {', '.join(_KINDS)}, with an optional 'when'; "
            f"got {got}{nearest(got, _KINDS)}"
        )
    (kind,) = kinds
    bounds = given[kind]
    if not isinstance(bounds, list | tuple) or len(bounds) < 2:
        raise SettingsError(f"'{name}': expected {kind} with two or more values, got {bounds!r}")
    if isinstance(own, bool) and not all(isinstance(bound, bool) for bound in bounds):
        raise SettingsError(f"'{name}': expected categorical true or false, got {entry!r}")
    if kind == "categorical":
        if any(bounds.count(bound) > 1 for bound in bounds):
            raise SettingsError(f"'{name}': expected different values, got {bounds!r}")
        return CategoricalDistribution(bounds)
    return _numeric_range(name, kind, bounds, own)


def _numeric_range(
    name: str, kind: str, bounds: Sequence[Any], own: Any
) -> FloatDistribution | IntDistribution:
    """The Optuna distribution of a numeric parameter, from its kind and two bounds."""
    numeric = int if kind == "int" else int | float
    if len(bounds) != 2 or not all(
        isinstance(bound, numeric) and not isinstance(bound, bool) and math.isfinite(bound)
        for bound in bounds
    ):
        wanted = "whole numbers" if kind == "int" else "numbers"
        raise SettingsError(f"'{name}': expected {kind}: [low, high], two {wanted}, got {bounds!r}")
    low, high = bounds
    if low >= high:
        raise SettingsError(f"'{name}': expected low < high, got {list(bounds)}")
    if kind == "int":
        return IntDistribution(low, high)
    if kind != "float" and low <= 0:
        raise SettingsError(f"'{name}': {kind} needs a lower bound above 0, got {low!r}")
    if kind == "times":
        if not isinstance(own, int | float) or own <= 0:
            raise SettingsError(f"'{name}': times needs a configured value above 0, got {own!r}")
        low, high = low * own, high * own
    return FloatDistribution(low, high, log=kind != "float")


def _condition(name: str, when: Any, earlier: Sequence[Parameter]) -> dict[str, tuple[Value, ...]]:
    """Parse the condition (`when`) of an entry of a search space."""
    if not isinstance(when, Mapping):
        raise SettingsError(f"'{name}': expected when: {{key: [values]}}, got {when!r}")
    known = {parameter.name: parameter for parameter in earlier}
    for key, allowed in when.items():
        if key not in known:
            raise SettingsError(
                f"'{name}': when: '{key}' is not searched before it{nearest(str(key), known)} "
                f"(searched before it: {', '.join(known) or 'nothing'})"
            )
        if isinstance(known[key].distribution, FloatDistribution):
            raise SettingsError(f"'{name}': when: '{key}' is searched over a continuous range")
        if not isinstance(allowed, list | tuple) or not allowed:
            raise SettingsError(f"'{name}': expected when: {{{key}: [values]}}, got {allowed!r}")
        for value in allowed:
            if not known[key].contains(value):
                raise SettingsError(
                    f"'{name}': when: '{key}' is never {value!r}; it is searched over "
                    f"{known[key].described}"
                )
    return {key: tuple(allowed) for key, allowed in when.items()}


def _extremes(space: Space) -> Iterator[dict[str, Value]]:
    """Yield parameter values to try: one inside each range, each extreme, each pair of extremes.

    The value inside is refused by a setting that takes whole numbers; pairs find limits that
    depend on a second setting.
    """
    for parameter in space.parameters:
        within = parameter.distribution
        if isinstance(within, FloatDistribution):
            yield {parameter.name: within.low + _INSIDE * (within.high - within.low)}
    for count in (1, 2):
        for some in combinations(space.parameters, count):
            for values in product(*(parameter.extremes for parameter in some)):
                yield {one.name: value for one, value in zip(some, values, strict=True)}


def _check_values(
    chosen: Mapping[str, Value],
    space: Space,
    configured: Mapping[str, Any],
    settings: Mapping[str, type],
) -> None:
    """Check that the settings accept the chosen values, with configured values for other keys."""
    required: dict[str, Sequence[Value]] = {}
    for parameter in reversed(space.parameters):
        if parameter.name in chosen or parameter.name in required:
            required.update(parameter.when)
    values: dict[str, Value] = {}
    for parameter in space.parameters:
        if parameter.active(values):
            own = configured_value(configured, parameter.name)
            allowed = required.get(parameter.name, (own,))
            other = own if own in allowed else allowed[0]
            values[parameter.name] = chosen.get(parameter.name, other)
    if not chosen.keys() <= values.keys():
        return  # the conditions exclude one another
    changed = with_values(configured, values)
    for prefix, type_ in settings.items():
        if any(name.startswith(f"{prefix}.") for name in (*chosen, *required)):
            try:
                parse(type_, configured_value(changed, prefix), prefix)
            except SettingsError as error:
                shown = " with ".join(f"{name} = {value!r}" for name, value in chosen.items())
                raise SettingsError(f"{shown} is refused by the settings: {error}") from None


def _defining_files(conf: Path, key: str, name: str) -> Iterator[str]:
    """Yield the configuration files that define a parameter of a search space."""
    for folder in sorted(path for path in conf.glob("*") if path.is_dir()):
        for path, values in keys.read(folder, "parameters").items():
            space: Any = values
            for part in key.split("."):
                space = space.get(part) if isinstance(space, Mapping) else None
            if isinstance(space, Mapping) and name in space:
                yield f"{conf.name}/{path.relative_to(conf)}"
