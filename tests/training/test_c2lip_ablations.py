"""Every ablation of C2LIP's paper is a matter of configuration alone.

Each starts from the shipped parameters_methods/c2lip.yml, and runs views, batches and losses of a
tiny model. All are on the same rows and weights, so what an ablation changes shows in the terms.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from compo_pipeline.core.settings import parse
from compo_pipeline.methods.c2lip import C2lip, C2lipObjective
from compo_pipeline.methods.contract import NoViewSettings
from compo_pipeline.methods.registry import build
from compo_pipeline.models.loading import give_bias, load

ALL = {"contrastive", "npc", "xac"}
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
    path = project / "conf" / "base" / "parameters_methods" / "c2lip.yml"
    shipped = build("c2lip", **yaml.safe_load(path.read_text())["c2lip"]).configuration
    views = parse(NoViewSettings, shipped["views"], "c2lip.views")
    # "cat" alone in place of "a red cat": phrases that several captions share.
    nouns = {name: replace(row, noun_phrases=(2, 3)) for name, row in world.parses.items()}
    shared = replace(world, parses=nouns)
    folder = shared.drawn(C2lip(views, C2lipObjective()), tmp_path_factory.mktemp("v") / "views")
    loaded = give_bias(load(tiny_clip), -5.0)

    def run(weights: Mapping[str, float] | None = None, **changes: Any) -> Terms:
        values = {**shipped["objective"], **changes}
        values["weights"] = {**shipped["objective"]["weights"], **(weights or {})}
        method = C2lip(views, parse(C2lipObjective, values, "c2lip.objective"))
        return terms_of(method, folder, loaded)

    return run


def test_the_rows_of_table_5(terms: Callable[..., Terms]) -> None:
    """SigLIP fine-tuning, + npc, + xac; what stays is as it was."""
    full = terms()
    assert set(full) == ALL
    for weights, names in (
        ({"npc": 0.0, "xac": 0.0}, {"contrastive"}),
        ({"xac": 0.0}, ALL - {"xac"}),
    ):
        fewer = terms(weights)
        assert set(fewer) == names
        for name, value in fewer.items():
            assert value == pytest.approx(full[name])


def test_phrases_of_figure_1b(terms: Callable[..., Terms]) -> None:
    """Pooled from the caption's tokens they are others than as texts of their own."""
    own, pooled = terms(), terms(phrases="tokens")
    assert pooled["contrastive"] == pytest.approx(own["contrastive"])
    for name in ("npc", "xac"):
        assert pooled[name] != pytest.approx(own[name])
