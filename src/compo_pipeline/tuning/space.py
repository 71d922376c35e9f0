"""What a study searches: settings by their dotted keys, each with a range or a choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compo_pipeline.configuration import SettingsError

if TYPE_CHECKING:
    from optuna import Trial

Value = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included.

    Attributes:
        low: the least.
        high: the greatest.
        log: drawn evenly in the logarithm.
        whole: whole numbers alone.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def suggest(self, trial: Trial, name: str) -> Value:
        """What a trial takes."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high))
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def holds(self, value: Any) -> bool:
        """Whether a value lies inside."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self.whole and value != int(value))

    def of(self, value: Any) -> Value:
        """A number that lies inside, as a trial would hold it."""
        return int(value) if self.whole else float(value)

    @property
    def ends(self) -> tuple[Value, ...]:
        """What the settings must take for them to take all of it."""
        return (self.low, self.high)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', in the logarithm' if self.log else ''}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values that have no order."""

    options: tuple[Value, ...]

    def suggest(self, trial: Trial, name: str) -> Value:
        """What a trial takes."""
        return trial.suggest_categorical(name, self.options)

    def holds(self, value: Any) -> bool:
        """Whether a value is one of them."""
        return value in self.options

    def of(self, value: Any) -> Value:
        """One of the values, as a trial would hold it."""
        return self.options[self.options.index(value)]

    @property
    def ends(self) -> tuple[Value, ...]:
        """What the settings must take: each of them."""
        return self.options

    def __str__(self) -> str:
        return ", ".join(map(str, self.options))


Domain = Range | Choice


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting that is searched.

    Attributes:
        name: its dotted key.
        domain: what it may be.
        when: values of earlier parameters under which alone it is searched.
    """

    name: str
    domain: Domain
    when: Mapping[str, Sequence[Value]] = field(default_factory=dict)

    def active(self, values: Mapping[str, Value]) -> bool:
        """Whether it is searched beside the values of earlier parameters."""
        return all(key in values and values[key] in allowed for key, allowed in self.when.items())


@dataclass(frozen=True, slots=True)
class Space:
    """The parameters of a study, in an order in which conditions look back alone."""

    parameters: tuple[Parameter, ...]

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """Values of a trial by dotted key; a parameter whose condition is not met has none."""
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.active(values):
                values[parameter.name] = parameter.domain.suggest(trial, parameter.name)
        return values

    def configured(self, parameters: Mapping[str, Any]) -> dict[str, Value]:
        """What the configuration says at the same keys, as a trial would hold it.

        Raises:
            SettingsError: a key is not configured, or its value lies outside what is searched.
        """
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.active(values):
                values[parameter.name] = at(parameters, parameter.name)
        if problems := list(self.outside(values)):
            raise SettingsError("\n".join(problems))
        return {
            parameter.name: parameter.domain.of(values[parameter.name])
            for parameter in self.parameters
            if parameter.name in values
        }

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Whether the values could be a trial's: all that are searched, none else, all inside."""
        active = {parameter.name for parameter in self.parameters if parameter.active(values)}
        return active == values.keys() and not list(self.outside(values))

    def outside(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Describe each value that a trial could not have: out of bounds, or none at all.

        Optuna runs an enqueued number that is out of bounds after a warning, but never takes the
        finished trial into another study, and fails on an unknown choice.
        """
        for parameter in self.parameters:
            if not parameter.active(values):
                continue
            if parameter.name not in values:
                yield f"{parameter.name}: there is no value"
            elif not parameter.domain.holds(values[parameter.name]):
                yield (
                    f"{parameter.name}: {values[parameter.name]!r} lies outside what is searched, "
                    f"{parameter.domain}"
                )


def at(parameters: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted key.

    Raises:
        SettingsError: there is none.
    """
    value: Any = parameters
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise SettingsError(
                f"{name}: searched, but not in the configuration: give it a value there first"
            )
        value = value[part]
    return value


def overlay(values: Mapping[str, Value]) -> dict[str, Any]:
    """Values by dotted key as nested mappings, the way configuration files have them."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *folders, last = name.split(".")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return nested


def applied(parameters: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """The parameters with the values at their dotted keys; what was given stays as it is.

    Raises:
        SettingsError: a key is not in the configuration.
    """
    changed = dict(parameters)
    for name, value in values.items():
        at(parameters, name)
        *folders, last = name.split(".")
        place = changed
        for folder in folders:
            place[folder] = dict(place[folder])
            place = place[folder]
        place[last] = value
    return changed
