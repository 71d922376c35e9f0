"""The methods by name, for wiring alone: the methods themselves load torch.

Graphs are the same for every method; a node's edge picks the settings of the chosen one.
"""

METHODS = ("c2lip", "clic", "clip", "fsc_clip", "negclip", "siglip", "sparcl", "triplet_clip")
TRAIN_ON_COUNTERFACTUALS = ("sparcl", "triplet_clip")

LABELS = {
    "c2lip": "C2LIP",
    "clic": "CLIC",
    "clip": "CLIP",
    "fsc_clip": "FSC-CLIP",
    "negclip": "NegCLIP",
    "siglip": "SigLIP",
    "sparcl": "SPARCL",
    "triplet_clip": "TripletCLIP",
}
"""Method names as the papers write them."""
