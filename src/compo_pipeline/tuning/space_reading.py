"""Search spaces as configuration has them, held against the settings that they become.

spaces:
  clic:
    training.optimizer.lr: {times: [0.1, 4]}
    clic.objective.positives: {int: [2, 5]}
    clic.objective.unimodal_norm: {categorical: [squared, plain]}
    clic.objective.weights.unimodal:
      float: [0.0, 2.0]
      when: {clic.objective.unimodal_norm: [squared]}

`times` is a log_float that runs from so many times the configured value to so many times it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, NoReturn

from compo_pipeline import keys
from compo_pipeline.configuration import SettingsError, nearest, parse
from compo_pipeline.tuning.setting_types import KINDS, described, fits, kinds, leaves
from compo_pipeline.tuning.space import Choice, Domain, Parameter, Range, Space, Value, at


def searchable(method: str) -> dict[str, type]:
    """The settings of a method that a study may search, by the key that they stand under.

    Its views are not among them: all trials share them.
    """
    from compo_pipeline.methods import method_type
    from compo_pipeline.training.settings import TrainingSettings

    return {f"{method}.objective": method_type(method).objective_type, "training": TrainingSettings}


def read(
    values: Mapping[str, Any],
    key: str,
    configured: Mapping[str, Any],
    settings: Mapping[str, type],
    conf: Path = Path("conf"),
) -> Space:
    """A search space that has been checked.

    Args:
        values: the space as Kedro read it.
        key: the YAML key it stands under (`spaces.clic`), for the error.
        configured: the parameters that trials change.
        settings: frozen settings by the key that they stand under, as `searchable` gives them.
        conf: the folder of all environments, to name the file of what is wrong.

    Raises:
        SettingsError: naming file and key: an unknown key, a kind that the setting cannot have,
            bounds or a category that it refuses, a condition on anything but an earlier parameter,
            or a configured value that lies outside.
    """
    reading = _Reading(key, settings, configured, conf)
    if not isinstance(values, Mapping) or not values:
        reading.refuse(None, f"expected settings to search, got {values!r}")
    parameters: list[Parameter] = []
    for name, entry in values.items():
        parameters.append(reading.parameter(name, entry, parameters))
    space = Space(tuple(parameters))
    reading.try_configured(space)
    reading.try_ends(space)
    return space


@dataclass(frozen=True)
class _Reading:
    """One space as it is read."""

    key: str
    settings: Mapping[str, type]
    configured: Mapping[str, Any]
    conf: Path

    def refuse(self, name: str | None, problem: str) -> NoReturn:
        files = _files(self.conf, self.key, name)
        place = f"{', '.join(files)}: " if files else ""
        raise SettingsError(f"{place}{self.key}: {problem}")

    def parameter(self, name: str, entry: Any, earlier: Sequence[Parameter]) -> Parameter:
        hint = self._hint(name)
        if not isinstance(entry, Mapping):
            self.refuse(name, f"'{name}': expected one of {', '.join(KINDS)}, got {entry!r}")
        # An environment changes the kind by taking the other one away with null.
        given = {kind: value for kind, value in entry.items() if value is not None}
        when = given.pop("when", {})
        if len(given) != 1 or not given.keys() <= set(KINDS):
            got = ", ".join(map(str, given)) or "none"
            self.refuse(
                name,
                f"'{name}': expected exactly one of {', '.join(KINDS)}, and 'when' beside it "
                f"for a condition; got {got}{nearest(got, KINDS)}",
            )
        ((kind, bounds),) = given.items()
        build = self._choice if kind == "categorical" else self._range
        return Parameter(name, build(name, kind, bounds, hint), self._when(name, when, earlier))

    def _hint(self, name: str) -> Any:
        """The type of the setting."""
        known = dict(
            leaf for prefix, type_ in self.settings.items() for leaf in leaves(type_, prefix)
        )
        if name not in known:
            self.refuse(
                name,
                f"unknown key '{name}'{nearest(str(name), known)} (a study searches settings of "
                f"{' and '.join(self.settings)})",
            )
        if not kinds(known[name]):
            self.refuse(name, f"'{name}' holds several values, and only single ones are searched")
        return known[name]

    def _range(self, name: str, kind: str, bounds: Any, hint: Any) -> Domain:
        whole = kind == "int"
        wanted = "whole numbers" if whole else "numbers"
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            self.refuse(name, f"'{name}': expected {kind}: [low, high], got {bounds!r}")
        for bound in bounds:
            number = isinstance(bound, int if whole else int | float)
            if not number or isinstance(bound, bool) or not math.isfinite(bound):
                self.refuse(name, f"'{name}': expected {wanted} as bounds of {kind}, got {bound!r}")
        low, high = bounds
        if low >= high:
            self.refuse(
                name, f"'{name}': expected the lower bound first, and not twice, got {list(bounds)}"
            )
        if kind in ("log_float", "times") and low <= 0:
            self.refuse(name, f"'{name}': {kind} needs a lower bound above 0, got {low!r}")
        if kind not in kinds(hint):
            allowed = " or ".join(kinds(hint))
            self.refuse(name, f"'{name}' takes {described(hint)}: expected {allowed}, got {kind}")
        if whole:
            return Range(low, high, whole=True)
        if kind == "times":
            own = at(self.configured, name)
            if not isinstance(own, int | float) or own <= 0:
                self.refuse(name, f"'{name}': times needs a configured value above 0, got {own!r}")
            return Range(low * own, high * own, log=True)
        return Range(float(low), float(high), log=kind == "log_float")

    def _choice(self, name: str, kind: str, values: Any, hint: Any) -> Domain:
        if not isinstance(values, list | tuple) or len(values) < 2:
            self.refuse(name, f"'{name}': expected {kind}: [two or more values], got {values!r}")
        for value in values:
            if not fits(value, hint):
                self.refuse(name, f"'{name}' takes {described(hint)}, got {value!r}")
            if values.count(value) > 1:
                self.refuse(name, f"'{name}': {value!r} stands twice")
        return Choice(tuple(values))

    def _when(
        self, name: str, when: Any, earlier: Sequence[Parameter]
    ) -> dict[str, tuple[Value, ...]]:
        if not isinstance(when, Mapping):
            self.refuse(name, f"'{name}': expected when: {{key: [values]}}, got {when!r}")
        known = {parameter.name: parameter.domain for parameter in earlier}
        for key, allowed in when.items():
            if key not in known:
                self.refuse(
                    name,
                    f"'{name}': its condition is on '{key}', which is not searched before it"
                    f"{nearest(str(key), known)} (before it: {', '.join(known) or 'nothing'})",
                )
            if not isinstance(allowed, list | tuple) or not allowed:
                self.refuse(name, f"'{name}': expected when: {{{key}: [values]}}, got {allowed!r}")
            domain = known[key]
            if isinstance(domain, Range) and not domain.whole:
                self.refuse(name, f"'{name}': its condition is on '{key}', which has no set values")
            for value in allowed:
                if not domain.holds(value):
                    self.refuse(
                        name, f"'{name}': '{key}' is never {value!r}; it is searched over {domain}"
                    )
        return {key: tuple(allowed) for key, allowed in when.items()}

    def try_configured(self, space: Space) -> None:
        """The configured values are the first trial, so they are part of the space."""
        try:
            space.configured(self.configured)
        except SettingsError as error:
            first = str(error).partition(":")[0]
            self.refuse(
                first,
                f"{error}\nThe configured values are always the first trial: widen the bounds "
                f"({self.key}, in an environment's parameters.yml too) or change the setting",
            )

    def try_ends(self, space: Space) -> None:
        """Build the settings of each end and category, and of each pair of these."""
        built: dict[str, Any] = {
            prefix: parse(type_, at(self.configured, prefix), prefix)
            for prefix, type_ in self.settings.items()
        }
        for chosen in _ends(space):
            drawn = _drawn(space, chosen, self.configured)
            if drawn is None:
                continue
            changed = dict(built)
            try:
                for name, value in drawn.items():
                    prefix = next(key for key in changed if name.startswith(f"{key}."))
                    path = name.removeprefix(f"{prefix}.").split(".")
                    changed[prefix] = _replaced(changed[prefix], path, value)
            except ValueError as error:
                shown = " with ".join(f"{name} = {value!r}" for name, value in chosen.items())
                self.refuse(next(iter(chosen)), f"{shown} is refused by the settings: {error}")


def _ends(space: Space) -> Iterator[dict[str, Value]]:
    """Each end of each parameter, then each pair of ends of two: limits tie two settings mostly."""
    for count in (1, 2):
        for some in combinations(space.parameters, count):
            for values in product(*(parameter.domain.ends for parameter in some)):
                yield {p.name: value for p, value in zip(some, values, strict=True)}


def _drawn(
    space: Space, chosen: Mapping[str, Value], configured: Mapping[str, Any]
) -> dict[str, Value] | None:
    """A trial with the chosen values, else the configured ones as far as conditions allow it.

    Returns:
        None where the chosen values exclude one another.
    """
    asked: dict[str, Sequence[Value]] = {}
    for parameter in reversed(space.parameters):
        if parameter.name in chosen or parameter.name in asked:
            asked.update(parameter.when)
    values: dict[str, Value] = {}
    for parameter in space.parameters:
        if not parameter.active(values):
            continue
        own = at(configured, parameter.name)
        allowed = asked.get(parameter.name, (own,))
        values[parameter.name] = chosen.get(parameter.name, own if own in allowed else allowed[0])
    return values if chosen.keys() <= values.keys() else None


def _replaced(settings: Any, path: Sequence[str], value: Value) -> Any:
    """Frozen settings with another value at a path of fields; they check it themselves."""
    first, *rest = path
    inner = _replaced(getattr(settings, first), rest, value) if rest else value
    return replace(settings, **{first: inner})


def _files(conf: Path, key: str, name: str | None) -> list[str]:
    """The files that say something of a space, or of one of its parameters."""
    found = []
    for folder in sorted(conf.iterdir()) if conf.is_dir() else ():
        for path, values in keys.read(folder, "parameters").items() if folder.is_dir() else ():
            place: Any = values
            for part in key.split("."):
                place = place.get(part) if isinstance(place, Mapping) else None
            if isinstance(place, Mapping) and (name is None or name in place):
                found.append(f"{conf.name}/{path.relative_to(conf)}")
    return found
