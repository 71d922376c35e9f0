"""`compo-pipeline try`: versions by alias or number, examples, and early errors."""

import json
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
from mlflow.entities.model_registry import ModelVersion
from PIL import Image

from compo_pipeline.benchmarks.settings import BenchmarkSet, BenchmarksSettings
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.models.loading import LoadedModel
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.pages.try_page import draw_examples, load_pair
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.settings import SigningSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.registry.versions import find


@pytest.fixture(scope="module")
def version(
    mlflow_project: Path,
    models: tuple[LoadedModel, LoadedModel],
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., ModelVersion],
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelVersion:
    """The challenger `tried`, version 1; the registry's tag of its method was changed."""
    tracking.configure(TrackingSettings(), mlflow_project)
    source = tmp_path_factory.mktemp("version")
    tags = version_files(models[1], source, method="clic")
    client = mlflow.MlflowClient()
    client.create_registered_model("tried")
    tags |= {"base_fingerprint": models[0].fingerprint, "method": "sparcl"}
    made = sealed(client.create_model_version("tried", str(source), tags=tags))
    client.set_registered_model_alias("tried", "challenger", made.version)
    return made


def test_missing_models_and_versions_are_named(version: ModelVersion) -> None:
    with pytest.raises(SettingsError, match=r"registration.name: .*no model 'missing'.*tracking"):
        find("missing", "champion", None)
    with pytest.raises(SettingsError, match=r"registration.name: .*no model 'missing'"):
        find("missing", "champion", 1)
    with pytest.raises(SettingsError, match=r"--version: tried has no version 7"):
        find("tried", "champion", 7)
    message = r"--alias: .*'champion' .*known: challenger \(version 1\).*--pipeline=promotion"
    with pytest.raises(SettingsError, match=message):
        find("tried", "champion", None)
    with pytest.raises(SettingsError, match="did you mean 'challenger'"):
        find("tried", "chalenger", None)


def test_a_version_is_loaded_beside_its_base(
    version: ModelVersion,
    models: tuple[LoadedModel, LoadedModel],
    folders: tuple[Path, Path],
) -> None:
    base = ModelSettings(f"local-dir:{folders[0]}")
    pair = load_pair(version, "challenger", base, "cpu", SigningSettings())
    loaded = (pair.base.fingerprint, pair.tuned.fingerprint)
    assert loaded == (models[0].fingerprint, models[1].fingerprint)
    assert pair.label == "challenger"
    assert pair.name == "tried, version 1"
    assert pair.origin == f"CLIC, fine-tuned from {pair.base.name}"
    other = ModelSettings(f"local-dir:{folders[1]}")
    with pytest.raises(SettingsError, match="fine-tuned from another model"):
        load_pair(version, "challenger", other, "cpu", SigningSettings())


@pytest.fixture
def benchmarks(tmp_path: Path) -> BenchmarksSettings:
    """Two subtasks of three items each; of the second no image can be read."""
    images = tmp_path / "images"
    images.mkdir()
    for name in ("swap_obj", "swap_att"):
        items = {}
        for number in range(3):
            file = f"{name}{number}.png"
            items[str(number)] = {
                "filename": file,
                "caption": f"right {file}",
                "negative_caption": f"wrong {file}",
            }
            if name == "swap_obj":
                Image.new("RGB", (8, 8)).save(images / file)
            else:
                (images / file).write_text("broken")
        (tmp_path / "sugar_crepe").mkdir(exist_ok=True)
        (tmp_path / "sugar_crepe" / f"{name}.json").write_text(json.dumps(items))
    return BenchmarksSettings(str(tmp_path), str(images), {"sugar_crepe": BenchmarkSet()})


def test_an_example_of_each_subtask_that_has_one(benchmarks: BenchmarksSettings) -> None:
    ((image, captions),) = draw_examples(benchmarks)
    file = Path(image).name
    assert (Path(image).parent, captions) == (
        Path(benchmarks.images),
        f"right {file}\nwrong {file}",
    )
    drawn = {next(draw_examples(benchmarks, seed))[0] for seed in range(10)}
    assert len(drawn) == 3
