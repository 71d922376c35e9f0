"""What becomes of two models, on scenes: registered, refused, promoted, served, rolled back."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest

from compo_pipeline.core.records import Score
from compo_pipeline.core.tables import Table

pytestmark = pytest.mark.slow

NAME = "compo-clip"
# Fewer questions than the demo's, and the towers in the precision that a server has.
SMALL = "scenes.items=200,evaluation.control=false"
SCORES = "data/07_model_output/scenes/{}/scores.parquet"
TABLE = "data/08_reporting/scenes/promotion/promotion.md"
BENCHMARKS = Path("data/01_raw/scenes/benchmarks/test")
ASKED = 40


def environment(**variables: str) -> dict[str, str]:
    """Of a process that no store was set for but by these."""
    known = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    return {**known, **variables}


def kedro(folder: Path, pipeline: str, *params: str, env: str = "local") -> tuple[int, str]:
    """Exit status and what a run said."""
    command = [sys.executable, "-m", "kedro", "run", f"--pipeline={pipeline}", f"--env={env}"]
    done = subprocess.run(
        [*command, "--params", ",".join((SMALL, *params))],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_model_from_training_to_service_and_back(
    workspace: Path,
    serve: Callable[..., AbstractContextManager[Callable[..., Any]]],
    tmp_path: Path,
) -> None:
    uri = f"sqlite:///{workspace / 'mlruns' / 'mlflow.db'}"
    client = mlflow.MlflowClient(uri, uri)

    def aliases() -> dict[str, int]:
        return {alias: int(n) for alias, n in client.get_registered_model(NAME).aliases.items()}

    def promote(*params: str) -> tuple[int, str]:
        status, said = kedro(workspace, "promotion", *params)
        assert "Traceback" not in said, said
        return status, said

    # Plain fine-tuning loses compositionality: it is registered, and no champion.
    status, said = kedro(workspace, "train_eval", "method=clip", "training.epochs=12")
    assert status == 0, said
    status, said = promote()
    assert status == 1
    assert "refused" in said and "| FAILED | composition |" in table(workspace)
    assert aliases() == {"challenger": 1}

    # It is in service all the same: somebody has said so by hand.
    client.set_registered_model_alias(NAME, "champion", "1")
    status, said = kedro(workspace, "train_eval")
    assert status == 0, said
    before = {"challenger": 2, "champion": 1}
    status, said = promote("promotion.dry_run=true")
    assert (status, aliases()) == (0, before), said
    status, said = promote()
    assert (status, aliases()) == (0, {"challenger": 2, "champion": 2, "previous": 1}), said
    tags = client.get_model_version(NAME, "2").tags
    assert tags["promotion.outcome"] == "promoted"
    assert tags["promotion.gate"] in table(workspace)
    checks = {check["rule"]: check for check in json.loads(tags["promotion.checks"])}
    assert checks["composition"]["numbers"]["low"] > 0

    questions, offline = asked(workspace)
    images = str(workspace / BENCHMARKS / "images")
    variables = environment(MLFLOW_TRACKING_URI=uri, COMPO_CLIP_IMAGE_ROOT=images)
    with serve(f"models:/{NAME}@champion", tmp_path, variables) as post:
        status, answer = post({"dataframe_records": questions})
    assert status == 200, answer
    served = [row["similarity"] for row in answer["predictions"]]
    assert served == pytest.approx(offline, abs=1e-5)

    status, said = promote("promotion.rollback=true")
    assert (status, aliases()) == (0, {"challenger": 2, "champion": 1}), said
    status, said = promote("promotion.rollback=true")
    assert status == 1 and "there is nothing to roll back" in said
    assert aliases() == {"challenger": 2, "champion": 1}


def table(workspace: Path) -> str:
    return (workspace / TABLE).read_text()


def asked(workspace: Path) -> tuple[list[dict[str, str]], list[float]]:
    """Image and text of every similarity of some items, and what the evaluation made of them."""
    file = workspace / BENCHMARKS / "sugar_crepe_pp" / "swap_att.json"
    items = {str(item["id"]): item for item in json.loads(file.read_text())[:ASKED]}
    scores = Table(Score, pq.read_table(workspace / SCORES.format("clic/default/seed=0")))
    rows, expected = [], []
    for score in scores:
        key = (score.model, score.benchmark, score.subtask, score.metric)
        if key == ("clic", "sugar_crepe_pp", "swap_att", "itt") and score.item in items:
            item = items[score.item]
            texts = (item["caption"], item["caption2"], item["negative_caption"])
            rows += [{"image": item["filename"], "text": text} for text in texts]
            expected += score.similarities
    assert len(rows) == len(expected) == 3 * ASKED
    return rows, expected
