"""Each environment of published data goes from data to a champion, and refuses a worse model.

The data are in their official layouts, the benchmarks are those of the paper's suite, both about
images of two colours. A model of captions in place trains, is tuned where rows are held out, is
mixed with its base and promoted. One of shuffled captions is compared with it and refused. Only
folders are named, and what `small` says: sizes of a few hundred images on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from kedro.framework.session import KedroSession
from tests.published import benchmarks, layouts, models, world

from compo_pipeline.configuration.settings import SettingsError, with_values
from compo_pipeline.versions.promotion import PromotionError

TRAINED, HELD_OUT, ASKED = 256, 400, 120
"""Images that train, that are held out, and that are in benchmarks: those of a metric are more
than promotion.gate.items, 100."""
# The authors' code takes WordNet, which is no part of the package.
LEXICON = {"fsc_clip.views.replacements": "lexicon"}


@dataclass(frozen=True)
class Environment:
    """Published data of an environment.

    Attributes:
        layout: writes them.
        base: the fixture of the model that is fine-tuned.
        trained: images that train.
        apart: values of its own that are no folder.
    """

    layout: Callable[[Path, list[world.Row], list[world.Row]], int]
    base: str = "small_clip"
    trained: int = TRAINED
    apart: Mapping[str, Any] | None = None


ENVIRONMENTS = {
    "coco": Environment(layouts.coco),
    "laion": Environment(layouts.cogvlm_laion),
    "redcaps": Environment(layouts.pixelprose),
    "cc12m": Environment(layouts.pixelprose),
    "fsc_coco": Environment(layouts.neg_clip, apart=LEXICON),
    "fsc_cc3m": Environment(layouts.img2dataset, apart=LEXICON),
    "fsc_laion_coco": Environment(layouts.img2dataset, apart=LEXICON),
    "table": Environment(layouts.table),
}
FAST = "laion"
TUNED = ("coco", "fsc_coco", "table")
"""Whose held-out rows make foils enough to tune on. The others hold out a tenth of their images,
which of so few images is too few: the study is refused."""


def small() -> dict[str, Any]:
    """The sizes: a batch and a number of trials for hundreds of rows, and no further processes."""
    return {
        "training.batch_size": 16,
        "training.workers": 0,
        "training.device": "cpu",
        "evaluation.workers": 1,
        "evaluation.device": "cpu",
        "tuning.study.trials": 2,
        "tuning.study.workers": 1,
        "tuning.confirmation.seeds": 1,
    }


@pytest.fixture(scope="session")
def small_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the base of most environments."""
    return models.write_clip(tmp_path_factory.mktemp("base") / "clip")


class Chain:
    """Runs pipelines of an environment in this process, in a folder of its own."""

    def __init__(self, folder: Path, env: str, params: Mapping[str, Any]) -> None:
        self.folder, self.env, self.params = folder, env, dict(params)

    def run(self, *pipelines: str, **more: Any) -> Any:
        """Runs pipelines one after the other, as the commands do; the catalog."""
        params = with_values({}, {**self.params, **more})
        for name in pipelines:
            with KedroSession.create(self.folder, env=self.env, runtime_params=params) as session:
                session.run(pipeline_names=[name])
                catalog = session.load_context().catalog
        return catalog

    def aliases(self) -> dict[str, int]:
        """Versions of the environment's model by alias."""
        client = mlflow.MlflowClient(f"sqlite:///{self.folder / 'mlruns' / 'mlflow.db'}")
        (model,) = client.search_registered_models()
        return {alias: int(version) for alias, version in model.aliases.items()}


@pytest.fixture
def chain(
    request: pytest.FixtureRequest,
    bootstrapped: Path,
    new_workspace: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], Chain]:
    """Makes the folder of an environment, with data, shuffled data and benchmarks."""

    def make(env: str) -> Chain:
        own, folder = ENVIRONMENTS[env], new_workspace()
        monkeypatch.chdir(folder)
        train, asked = world.rows(0, own.trained), world.rows(20_000, ASKED)
        held_out = [*world.rows(10_000, HELD_OUT), *asked]  # as COCO's validation images
        for name, rows in (("true", train), ("shuffled", world.shuffled(train))):
            (folder / name).mkdir()
            own.layout(folder / name, rows, held_out)
        benchmarks.write(folder / "benchmarks", asked, folder / "benchmarks" / "images")
        folders = {
            "data.root": str(folder / "true"),
            "benchmarks.root": str(folder / "benchmarks"),
            "model.name": f"local-dir:{request.getfixturevalue(own.base)}",
            "model.pretrained": None,
        }
        return Chain(folder, env, {**folders, **small(), **(own.apart or {})})

    return make


def goes_to_a_champion(chain: Chain) -> None:
    """Data to a champion, and a worse model that is refused."""
    chain.run("train_eval")
    tune(chain)
    catalog = chain.run("wise_ft", "promotion")
    assert_mixtures(catalog.load("wise_ft"), chosen=chain.env in TUNED)
    assert chain.aliases() == {"challenger": 1, "champion": 1}
    page = (catalog.load("promotion_report") / "promotion.md").read_text()
    assert "version 1: promoted" in page and "FAILED" not in page and "waived" not in page

    worse = {"data.root": str(chain.folder / "shuffled"), "variant": "shuffled"}
    chain.run("train_eval", **worse)
    with pytest.raises(PromotionError, match=r"version 2: refused\. Failed: composition"):
        chain.run("promotion", **worse)
    assert chain.aliases() == {"challenger": 2, "champion": 1}


def tune(chain: Chain) -> None:
    """Two trials on foils of held-out rows; without enough of them one line."""
    if chain.env not in TUNED:
        with pytest.raises(SettingsError, match="foils"):
            chain.run("tuning")
        return
    catalog = chain.run("tuning")
    study = catalog.load("study")
    assert study["trials"]["complete"] == 2
    assert (catalog.load("tuning_report") / "study.html").is_file()


def assert_mixtures(table: pd.DataFrame, *, chosen: bool) -> None:
    """All roles of every ratio on the reported items, and composition on those that choose one."""
    means = table[(table.benchmark == "roles") & (table.measured_on == "reported")]
    assert set(means.name) == {"composition", "retrieval", "zero_shot"}
    assert (means.groupby("name").ratio.nunique() == 11).all()
    assert ("composition" in set(table[table.measured_on == "validation"].name)) == chosen


def test_a_recipe_goes_from_data_to_a_champion(chain: Callable[[str], Chain]) -> None:
    goes_to_a_champion(chain(FAST))


@pytest.mark.slow
@pytest.mark.parametrize("env", [env for env in ENVIRONMENTS if env != FAST])
def test_every_recipe_goes_from_data_to_a_champion(chain: Callable[[str], Chain], env: str) -> None:
    goes_to_a_champion(chain(env))
