"""Each environment of published data goes from data to a champion, and refuses a worse model.

The data are in their official layouts, the benchmarks are those of the paper's suite, both about
images of two colours. A model of captions in place trains, is tuned on foils of held-out rows, is
mixed with its base and promoted. One whose images are exchanged for those of other captions is
compared with it and refused. Only folders are named, and what `small` says: sizes of a few hundred
images on two cores.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from kedro.framework.session import KedroSession
from tests.published import benchmarks, layouts, models, world

from compo_pipeline.core.settings import with_values
from compo_pipeline.evaluation.analysis.wise_ft import RATIOS
from compo_pipeline.registry.promotion import PromotionError

HELD_OUT, ASKED = 640, 120
"""Images that are held out, and those that are in benchmarks: more than promotion.gate.items."""
# The authors' code takes WordNet, which is no part of the package.
LEXICON = {"fsc_clip.views.replacements": "lexicon"}


@dataclass(frozen=True)
class Environment:
    """Published data of an environment.

    Attributes:
        layout: writes them.
        rows: that train, of so few images that all epochs are a few dozen steps.
        images: of the split that trains, beside the HELD_OUT that are carved from it.
        base: the fixture of the model that is fine-tuned.
        apart: its further values, or the fixture of them: folders, sizes, what is not installed.
        carves: whether the split that trains has the held-out images too.
    """

    layout: Callable[[Path, list[world.Row], list[world.Row]], int]
    rows: int
    images: int
    base: str = "small_clip"
    apart: str | Mapping[str, Any] = field(default_factory=dict)
    carves: bool = True


ENVIRONMENTS = {
    "coco": Environment(layouts.coco, 128, 160),
    "laion": Environment(layouts.cogvlm_laion, 320, 320),
    "redcaps": Environment(layouts.pixelprose, 320, 320),
    "cc12m": Environment(layouts.pixelprose, 320, 320),
    "fsc_coco": Environment(layouts.neg_clip, 128, 64, apart=LEXICON, carves=False),
    "fsc_cc3m": Environment(layouts.img2dataset, 128, 128, apart=LEXICON),
    "fsc_laion_coco": Environment(layouts.img2dataset, 128, 128, apart=LEXICON),
    "siglip_cc3m": Environment(layouts.dreamlip, 128, 128, base="small_siglip"),
    "sparcl_coco": Environment(layouts.coco_2014, 256, 320, apart="small_diffusion"),
    "table": Environment(layouts.table, 64, 32, carves=False),
}


def small(rows: int) -> dict[str, Any]:
    """The sizes, of rows and of what a few of them need, in float32 and in one process."""
    return {
        "data.sample.rows": rows,
        "training.batch_size": 16,
        "training.optimizer.warmup_steps": None,
        "training.precision": "fp32",
        "training.workers": 0,
        "training.device": "cpu",
        "evaluation.workers": 1,
        "evaluation.device": "cpu",
        "tuning.study.trials": 2,
        "tuning.study.workers": 1,
        "tuning.confirmation": 1,
    }


@pytest.fixture(scope="session")
def small_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the base of most environments."""
    return models.write_clip(tmp_path_factory.mktemp("base") / "clip")


@pytest.fixture(scope="session")
def small_siglip(
    tmp_path_factory: pytest.TempPathFactory,
    write_siglip_tokenizer: Callable[[Path, Sequence[str]], Path],
) -> Path:
    """Folder of a SigLIP with its tokenizer."""
    folder = models.write_siglip(tmp_path_factory.mktemp("base") / "siglip")
    return write_siglip_tokenizer(folder, models.PIECES)


@pytest.fixture
def small_diffusion(
    tiny_diffusion: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Folders of a text-to-image model with random weights and of its CLIP, and small images.

    Its images are noise: that they are made and trained on is tested, not that they teach anything.
    What the model learns is from captions, their edits and real images.
    """
    model, vision = tiny_diffusion(), tmp_path_factory.mktemp("vision")
    for part in ("image_encoder", "feature_extractor"):
        shutil.copytree(model / part, vision, dirs_exist_ok=True)
    return {
        "counterfactuals.diffusion.model": str(model),
        "counterfactuals.diffusion.vision": str(vision),
        "counterfactuals.diffusion.steps": 1,
        "counterfactuals.diffusion.height": 32,
        "counterfactuals.diffusion.width": 32,
        "counterfactuals.diffusion.precision": "fp32",
        "training.contrast_group": 16,
    }


class Chain:
    """Runs pipelines of an environment in this process, in a folder of its own."""

    def __init__(self, folder: Path, env: str, params: Mapping[str, Any]) -> None:
        self.folder, self.env, self.params = folder, env, dict(params)

    def _session(self, more: Mapping[str, Any]) -> KedroSession:
        params = with_values({}, {**self.params, **more})
        return KedroSession.create(self.folder, env=self.env, runtime_params=params)

    def run(self, *pipelines: str, **more: Any) -> None:
        """Runs pipelines one after the other, as the commands do."""
        for name in pipelines:
            with self._session(more) as session:
                session.run(pipeline_names=[name])

    @property
    def catalog(self) -> Any:
        """What the runs have saved."""
        with self._session({}) as session:
            return session.load_context().catalog

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
    """Makes the folder of an environment, with data and benchmarks."""

    def make(env: str) -> Chain:
        own, folder = ENVIRONMENTS[env], new_workspace()
        monkeypatch.chdir(folder)
        carved = HELD_OUT if own.carves else 0
        train, asked = world.rows(0, own.images + carved), world.rows(20_000, ASKED)
        held_out = [*world.rows(10_000, HELD_OUT), *asked]  # as COCO's validation images
        (folder / "true").mkdir()
        own.layout(folder / "true", train, held_out)
        benchmarks.write(folder / "benchmarks", asked, folder / "benchmarks" / "images")
        apart = own.apart
        values = {
            "data.root": str(folder / "true"),
            "benchmarks.root": str(folder / "benchmarks"),
            "model.name": f"local-dir:{request.getfixturevalue(own.base)}",
            "model.pretrained": None,
            **small(own.rows),
            **(request.getfixturevalue(apart) if isinstance(apart, str) else apart),
        }
        if carved:
            values["foils.carve"] = carved
        return Chain(folder, env, values)

    return make


def goes_to_a_champion(chain: Chain) -> None:
    """Data to a champion, and a worse model that is refused."""
    chain.run("train_eval", "tuning", "wise_ft", "promotion")
    assert chain.aliases() == {"challenger": 1, "champion": 1}
    catalog = chain.catalog
    assert catalog.load("study")["trials"]["complete"] == 2
    assert (catalog.load("tuning_report") / "study.html").is_file()
    assert_mixtures(catalog.load("wise_ft"))
    page = (catalog.load("promotion_report") / "promotion.md").read_text()
    assert "version 1: promoted" in page and "FAILED" not in page and "waived" not in page

    shuffled = shutil.copytree(chain.folder / "true", chain.folder / "shuffled")
    train = {row.image for row in catalog.load("valid_captions") if row.split == "train"}
    world.shuffle_images([shuffled / image for image in sorted(train)])
    worse = {"data.root": str(shuffled), "variant": "shuffled"}
    chain.run("train_eval", **worse)
    with pytest.raises(PromotionError, match=r"version 2: refused\. Failed: composition"):
        chain.run("promotion", **worse)
    assert chain.aliases() == {"challenger": 2, "champion": 1}


def assert_mixtures(table: pd.DataFrame) -> None:
    """All roles of every ratio on the reported items, and composition on those that choose one."""
    means = table[(table.benchmark == "roles") & (table.measured_on == "reported")]
    assert set(means.name) == {"composition", "retrieval", "zero_shot"}
    assert all(tuple(own) == RATIOS for _, own in means.groupby("name").ratio)
    assert "composition" in set(table[table.measured_on == "validation"].name)


@pytest.mark.slow
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_recipe_goes_from_data_to_a_champion(chain: Callable[[str], Chain], env: str) -> None:
    goes_to_a_champion(chain(env))
