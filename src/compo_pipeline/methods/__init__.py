"""Fine-tuning methods: one file each, behind the contract that the training loop knows."""

from __future__ import annotations

from compo_pipeline.configuration import SettingsError, nearest
from compo_pipeline.methods.c2lip import C2lip
from compo_pipeline.methods.clic import Clic
from compo_pipeline.methods.clip import Clip
from compo_pipeline.methods.contract import Method
from compo_pipeline.methods.fsc_clip import FscClip
from compo_pipeline.methods.negclip import NegClip
from compo_pipeline.methods.siglip import Siglip
from compo_pipeline.methods.sparcl import Sparcl
from compo_pipeline.methods.triplet_clip import TripletClip

METHODS: dict[str, type[Method]] = {
    "c2lip": C2lip,
    "clic": Clic,
    "clip": Clip,
    "fsc_clip": FscClip,
    "negclip": NegClip,
    "siglip": Siglip,
    "sparcl": Sparcl,
    "triplet_clip": TripletClip,
}


def method_type(name: str) -> type[Method]:
    """The method of a name.

    Raises:
        SettingsError: there is none; names the nearest.
    """
    if name not in METHODS:
        raise SettingsError(
            f"method: '{name}' is unknown{nearest(name, METHODS)} (allowed: {', '.join(METHODS)})"
        )
    return METHODS[name]
