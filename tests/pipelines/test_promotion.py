"""The pipelines of promotion and rollback as Kedro runs them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from PIL import Image
from tests.evaluating import evaluate

from compo_pipeline.benchmarks.items import Item, Subtask
from compo_pipeline.core.provenance import CommandOptions, Site
from compo_pipeline.core.settings import parse, plain
from compo_pipeline.data.catalog import PageDataset
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import scored_items
from compo_pipeline.models.loading import load
from compo_pipeline.pipeline_registry import register_pipelines
from compo_pipeline.project.settings import RunSettings
from compo_pipeline.registry import runs as tracking
from compo_pipeline.registry.evidence import Evidence, write_evidence
from compo_pipeline.registry.promotion import PromotionError
from compo_pipeline.registry.settings import PromotionSettings, RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings

IMAGES = 4
NAME = "pipeline-promoted"


@pytest.fixture(scope="module")
def subtask(tmp_path_factory: pytest.TempPathFactory) -> Subtask:
    """Random images, each with two right texts and a wrong one."""
    root = tmp_path_factory.mktemp("images")
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
    items = (Item(f"{k}", f"{k}.png", (f"cup {k}", f"a {k}"), ("key",)) for k in range(IMAGES))
    return Subtask("sugar_crepe_pp", "swap_att", ("image_to_text",), root, tuple(items))


@pytest.fixture
def run(
    shipped: RunSettings,
    subtask: Subtask,
    tiny_model: Callable[..., Path],
    version_files: Callable[..., dict[str, str]],
    sealed: Callable[..., Any],
    mlflow_project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., None]:
    """Runs a pipeline with the project's settings and a challenger that is its own base."""
    monkeypatch.chdir(mlflow_project)
    tracking.configure(TrackingSettings(), mlflow_project)
    base = tiny_model(seed=5)
    client = mlflow.MlflowClient()
    client.create_registered_model(NAME)
    models = {BASE: lambda: load(base), FINE_TUNED: lambda: load(base)}
    settings = EvaluationSettings(device="cpu")
    scores, comparison = evaluate([subtask], models, "m", "M", "toy", TrainingRows(), settings)
    by_role = {
        role: scores.having("model", [model.name]) for role, model in comparison.models.items()
    }
    for alias in ("previous", "champion", "challenger"):
        folder = tmp_path / alias
        tags = version_files(load(base), folder)
        tags["base_fingerprint"] = tags["fingerprint"]
        (export,) = (folder / "artifacts").iterdir()
        write_evidence(
            export, Evidence.from_comparison(comparison), by_role, scored_items([subtask])
        )
        run_id = tracking.open_run("promoted", {})
        made = sealed(client.create_model_version(NAME, str(folder), run_id, tags=tags))
        client.set_registered_model_alias(NAME, alias, made.version)
    promotion = plain(shipped.promotion)

    report = tmp_path / "report"
    site = Site(CommandOptions("toy"), {"promotion_report": str(report / "promotion.html")})

    def start(pipeline: str = "promotion", **settings: Any) -> None:
        inputs: dict[str, Any] = {
            "params:promotion": parse(PromotionSettings, {**promotion, **settings}, "promotion"),
            "params:registration": RegistrationSettings(NAME),
            "params:tracking": TrackingSettings(),
            "params:site": site,
        }
        outputs = {"promotion_report": PageDataset(filepath=str(report), page="promotion.html")}
        memory = {name: MemoryDataset(value) for name, value in inputs.items()}
        catalog = DataCatalog({**memory, **outputs})
        SequentialRunner().run(register_pipelines()[pipeline], catalog)

    yield start
    client.delete_registered_model(NAME)


def aliases() -> dict[str, int]:
    found = mlflow.MlflowClient().get_registered_model(NAME).aliases
    return {alias: int(version) for alias, version in found.items()}


def test_a_refusal_is_an_error_with_a_page(
    run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "clic" / "default" / "seed=0" / "report" / "report.html"
    report.parent.mkdir(parents=True)
    report.touch()
    with pytest.raises(PromotionError, match="refused.*composition"):
        run()
    assert aliases() == {"previous": 1, "champion": 2, "challenger": 3}
    page = (tmp_path / "report" / "promotion.md").read_text()
    assert page.startswith(f"# {NAME} version 3: refused")
    html = (tmp_path / "report" / "promotion.html").read_text()
    assert f"<h1>{NAME} version 3: refused</h1>" in html and '<td class="bad">FAILED</td>' in html
    assert "kedro run --pipeline=promotion --env=toy" in html
    assert 'href="../clic/default/seed=0/report/report.html"' in html
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    for shown in (printed, page, html):
        assert "promotion.dry_run=true" in shown


def test_a_promotion_by_a_gate_of_ones_own(
    run: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rule = {"figure": "sugar_crepe_pp/itt/swap_att", "must": "hold", "by": 100}
    run(gate={"version": 2, "items": IMAGES, "rules": {"itt": rule}})
    assert aliases() == {"previous": 2, "champion": 3, "challenger": 3}
    assert "version 3: promoted" in (tmp_path / "report" / "promotion.md").read_text()
    (unsigned,) = [each for each in caplog.messages if "registration.signing" in each]
    assert "whoever can write the store can forge evidence" in unsigned
