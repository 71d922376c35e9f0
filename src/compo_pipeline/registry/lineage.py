"""Which data a run has read, as MLflow's dataset inputs."""

from __future__ import annotations

import json

from compo_pipeline.registry.record import Record
from compo_pipeline.registry.stamp import Stamp

# MLflow's limit.
_DIGEST = 36


def training_data(record: Record, name: str, data_hash: str, root: str) -> None:
    """Note the data that a run was trained on.

    Args:
        record: the run.
        name: of the dataset.
        data_hash: of its manifest.
        root: where it lies.
    """
    _note(record, name, data_hash, root, "training")


def questions(record: Record, stamp: Stamp, root: str | None) -> None:
    """Note what the models of a run were asked: digest and folder of the benchmarks, if any."""
    _note(record, "benchmarks", f"{stamp.questions}-{stamp.images}", root, "evaluation")


def _note(record: Record, name: str, digest: str, root: str | None, context: str) -> None:
    import mlflow
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

    data = Dataset(
        name, digest[:_DIGEST], "local", json.dumps({} if root is None else {"uri": root})
    )
    tags = [InputTag(MLFLOW_DATASET_CONTEXT, context), InputTag("digest", digest)]
    mlflow.MlflowClient().log_inputs(record.run_id, [DatasetInput(data, tags)])
