"""The methods by name: label, class and needs. Importing this module loads no torch.

A new method is one file with its class and one entry here; conf/base/parameters_methods has what
the demo sets of it. An installed package adds its own method by an entry point of the
group `compo_pipeline.methods` that names a `MethodEntry`, a program by `register`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compo_pipeline.core.plugins import Registry
from compo_pipeline.core.settings import SettingsError, nearest, parse

if TYPE_CHECKING:
    from compo_pipeline.methods.contract import Method

# The parameter with the settings of the method in use: the project's hook fills it in, and so the
# graph is the same for every method.
METHOD_SETTINGS = "method_settings"
GROUP = "compo_pipeline.methods"


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """Registry entry of a method: its name, its class path, and the inputs of its views."""

    name: str
    """Value of the YAML key `method`, and the key of the method's own settings."""

    label: str
    """The name for readers, as the paper writes it."""

    path: str
    """Import path of the class, `module:Class`; imported when the method is used."""

    parses: bool = False
    """Whether views are made from parses of the captions' first sentences."""

    further_parses: bool = False
    """Whether they are made from parses of the further sentences too."""

    counterfactuals: bool = False
    """Whether views are made from edited captions and their images."""


METHODS: Registry[MethodEntry] = Registry(GROUP, {})
"""Entries by name. That of an installed package is imported when it is asked for: its module, which
may be what imports this one, need not be complete."""


def register(entry: MethodEntry) -> None:
    """Add a method to the registry.

    Raises:
        ValueError: another method has this name.
    """
    if METHODS.setdefault(entry.name, entry) != entry:
        raise ValueError(
            f"two methods are named '{entry.name}': {METHODS[entry.name].path} and {entry.path}"
        )


def find(name: str) -> MethodEntry:
    """Registry entry of the method with this name.

    Raises:
        SettingsError: there is none; names the nearest.
    """
    if name not in METHODS:
        raise SettingsError(
            f"method: '{name}' is unknown{nearest(name, METHODS)} (allowed: {', '.join(METHODS)})"
        )
    entry = METHODS[name]
    if entry.name != name:
        raise SettingsError(
            f"method: the entry point '{name}' of the group {GROUP} names a method '{entry.name}'; "
            "give both one name"
        )
    return entry


def label(name: str) -> str:
    """Display name of a method, or the registry name of a method that is not installed."""
    return METHODS[name].label if name in METHODS else name


def method_type(name: str) -> type[Method]:
    """The class of the method with this name.

    Raises:
        SettingsError: there is no method of this name.
    """
    found: type[Method] = pkgutil.resolve_name(find(name).path)
    return found


def build(
    name: str,
    views: Mapping[str, Any],
    objective: Mapping[str, Any] | None = None,
    place: Callable[[str], str] = lambda key: "",
) -> Method:
    """A method object from its settings in YAML, or with its defaults without an objective.

    Args:
        name: name in the registry.
        views: settings of the views.
        objective: settings of the objective.
        place: gives the place of a dotted key, for errors; see `core.settings.parse`.

    Raises:
        SettingsError: there is no such method, or a setting that it cannot use.
    """
    kind = method_type(name)
    own: Any = parse(kind.views_type, views, f"{name}.views", place)
    return kind(own, parse(kind.objective_type, objective or {}, f"{name}.objective", place))


for _name, _label, _class, _needs in (
    ("c2lip", "C2LIP", "c2lip:C2lip", {"parses": True}),
    ("ce_clip", "CE-CLIP", "ce_clip:CeClip", {"parses": True}),
    ("clic", "CLIC", "clic:Clic", {"parses": True}),
    ("clip", "CLIP", "clip:Clip", {}),
    ("cs_clip", "CS-CLIP", "cs_clip:CsClip", {"parses": True}),
    ("dac_mil", "DAC", "dac_mil:DacMil", {"parses": True, "further_parses": True}),
    ("fsc_clip", "FSC-CLIP", "fsc_clip:FscClip", {"parses": True}),
    ("lab_clip", "LabCLIP", "lab_clip:LabClip", {"parses": True}),
    ("negclip", "NegCLIP", "negclip:NegClip", {"parses": True}),
    ("read_clip", "READ-CLIP", "read_clip:ReadClip", {"parses": True}),
    ("read_fsc_clip", "FSC-CLIP + READ", "read_clip:ReadFscClip", {"parses": True}),
    ("siglip", "SigLIP", "clip:Siglip", {}),
    ("sneg", "S-Neg", "sneg:Sneg", {"parses": True}),
    ("sparcl", "SPARCL", "sparcl:Sparcl", {"counterfactuals": True}),
    ("svlc_r", "SVLC-R", "svlc_r:SvlcR", {"parses": True}),
    ("triplet_clip", "TripletCLIP", "triplet_clip:TripletClip", {"counterfactuals": True}),
):
    register(MethodEntry(_name, _label, f"{__package__}.{_class}", **_needs))
