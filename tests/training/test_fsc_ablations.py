"""Every ablation of FSC-CLIP's paper is a matter of configuration alone.

Each starts from the shipped parameters_methods/fsc_clip.yml, and runs views, batches and losses of
a tiny model. All are on the same rows and weights, so what an ablation changes shows in the terms.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from compo_pipeline.core.settings import parse
from compo_pipeline.methods.fsc_clip import FscClip, FscClipObjective, FscClipViews
from compo_pipeline.methods.registry import build
from compo_pipeline.models.loading import LoadedModel, load

ALL = {"contrastive", "global_hn", "local_hn"}
Terms = dict[str, tuple[float, float]]


@pytest.fixture(scope="module")
def terms(
    project: Path,
    world: Any,
    terms_of: Any,
    tiny_clip: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Terms]:
    """Value and weight of each loss under overrides of the objective."""
    path = project / "conf" / "base" / "parameters_methods" / "fsc_clip.yml"
    shipped = build("fsc_clip", **yaml.safe_load(path.read_text())["fsc_clip"]).configuration
    views = parse(FscClipViews, shipped["views"], "fsc_clip.views")
    folder = world.drawn(FscClip(views, FscClipObjective()), tmp_path_factory.mktemp("v") / "views")
    loaded: LoadedModel = load(tiny_clip)

    def run(weights: Mapping[str, float] | None = None, **changes: Any) -> Terms:
        values = {**shipped["objective"], **changes}
        values["weights"] = {**shipped["objective"]["weights"], **(weights or {})}
        method = FscClip(views, parse(FscClipObjective, values, "fsc_clip.objective"))
        return terms_of(method, folder, loaded)

    return run


def test_components_on_and_off(terms: Callable[..., Terms]) -> None:
    """The global and the local loss; what stays is as it was."""
    full = terms()
    assert set(full) == ALL
    for left_out in ("global_hn", "local_hn"):
        fewer = terms({left_out: 0.0})
        assert set(fewer) == ALL - {left_out}
        for name, value in fewer.items():
            assert value == pytest.approx(full[name])


def test_focal_weights(terms: Callable[..., Terms]) -> None:
    """The stronger, the less do confident rows count: both losses fall, the contrast stays."""
    found = [terms(gamma=gamma, beta=0.0) for gamma in (0.0, 1.0, 2.0, 5.0)]
    for name in ("global_hn", "local_hn"):
        values = [losses[name][0] for losses in found]
        assert values == sorted(values, reverse=True) and len(set(values)) == 4
    assert len({losses["contrastive"] for losses in found}) == 1


def test_label_smoothing(terms: Callable[..., Terms]) -> None:
    found = [terms(gamma=0.0, beta=beta) for beta in (0.0, 0.02, 0.05, 0.1)]
    for name in ("global_hn", "local_hn"):
        values = [losses[name][0] for losses in found]
        # Linear in beta: a mixture of two labels.
        steps = [(values[i] - values[0]) / b for i, b in ((1, 0.02), (2, 0.05), (3, 0.1))]
        assert steps == pytest.approx([steps[0]] * 3, rel=1e-3)
        assert len(set(values)) == 4


def test_norms_of_attention(terms: Callable[..., Terms]) -> None:
    """Appendix B.1: they change the local loss alone."""
    found = [terms(attention=norm) for norm in ("minmax", "minmax_sparse", "softmax")]
    assert len({losses["local_hn"][0] for losses in found}) == 3
    assert len({losses["global_hn"][0] for losses in found}) == 1
