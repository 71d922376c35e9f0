"""Registration: export a checkpoint with its model card and register it in MLflow's registry."""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import pandas as pd
from mlflow.entities import LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.models import ModelSignature
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array
from PIL import Image

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.evaluation.comparison import FINE_TUNED, run_metrics
from compo_pipeline.evaluation.conclusions import headline
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.models import weights
from compo_pipeline.models.export import export
from compo_pipeline.models.loading import load
from compo_pipeline.models.weights import CONFIG_FILE, read_record
from compo_pipeline.run.provenance import UNKNOWN_COMMIT
from compo_pipeline.storage.files import file_sha256
from compo_pipeline.storage.records import Caption
from compo_pipeline.tracking.run_log import RunLog
from compo_pipeline.versions import versions
from compo_pipeline.versions.copies import find_same_model, latest_of_model
from compo_pipeline.versions.croissant import write_croissant
from compo_pipeline.versions.evidence import read_evidence
from compo_pipeline.versions.layout import (
    ARTEFACT,
    CARD,
    SERVED_CODE,
    SERVING_PACKAGES,
    TOKENIZER_PACKAGE,
)
from compo_pipeline.versions.lineage import FILES_TAG, file_digests, files_digest
from compo_pipeline.versions.materials import (
    DATA_PARTS,
    Material,
    with_licence,
    write_bom,
)
from compo_pipeline.versions.model_card import card_limits, write_card
from compo_pipeline.versions.settings import CHAMPION, PREVIOUS, RegistrationSettings
from compo_pipeline.versions.verification import seal, write_probes

# Tags that identify a run for readers.
RUN_TAGS = ("dataset", "method", "variant", "seed")
# Version of the exported folder's files and of compo.json, for readers of registered folders.
EXPORT_FORMAT = 4
# Limit of a server's database.
_DESCRIPTION_LENGTH = 5000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered model version; the field `fresh` says whether this call created it."""

    name: str
    version: int
    alias: str | None
    run_id: str
    model_uri: str
    fresh: bool


class MadeFrom(NamedTuple):
    """The data manifest, caption rows, and models and data sets that a checkpoint was made from."""

    manifest: Mapping[str, Any]
    """Of the data."""
    captions: Sequence[Caption]
    """Valid rows of all splits."""
    materials: tuple[Material, ...]
    """Base model, data, and the models that prepared them."""


def export_with_card(
    checkpoint: Path,
    folder: Path,
    run: Mapping[str, Any],
    made_from: MadeFrom,
    comparison: Comparison,
    settings: RegistrationSettings,
    waive: Collection[Role] = (),
) -> Path:
    """Export a checkpoint into the folder to register, with model card and bill of materials.

    It has weights, provenance, probes, model card, bill of materials, and metadata of the data.

    Args:
        checkpoint: of a run.
        folder: of the export.
        run: that trained the checkpoint: `run_id`, method, variant and seed, and what is said of
            its `rows`.
        made_from: data, and what else the checkpoint was made from.
        comparison: result of the run's evaluation.
        settings: name, precision and licences.
        waive: roles without which the version may pass its gate, for the card.

    Raises:
        SettingsError: the comparison is of another checkpoint.
    """
    loaded = load(checkpoint)
    comparison.require(loaded.fingerprint)
    metadata = {
        **read_record(checkpoint),
        **{name: {**run, "dataset": comparison.dataset}[name] for name in RUN_TAGS},
        "rows": run.get("rows"),
        "export_format": EXPORT_FORMAT,
        "checkpoint_sha256": file_sha256(weights.find(checkpoint)),
    }
    export(loaded, folder, precision=settings.precision, metadata=metadata)
    write_probes(folder)
    record = read_record(folder)
    materials = [with_licence(one, settings.licences) for one in made_from.materials]
    data = [one for one in materials if one.part in DATA_PARTS]
    card = (made_from.manifest, materials, comparison, run["run_id"], waive)
    write_card(folder, settings, *card)
    figures = [row for row in comparison.rows if row.headline]
    limits = card_limits(comparison, waive)
    write_bom(folder, settings.name, settings.licence, record, materials, figures, limits)
    write_croissant(folder, data, made_from.manifest, made_from.captions)
    return folder


def register(
    folder: Path,
    run: RunLog,
    manifest: Mapping[str, Any],
    comparison: Comparison,
    root: str,
    settings: RegistrationSettings,
) -> Registered:
    """Log an exported folder to the active run as a model, register it, and sign it if configured.

    If an intact version of the same checkpoint in the same precision exists, scored in the same way
    and with the same overlaps with the training data, that version gets the alias, and no second
    one is created.

    Args:
        folder: written by `export_with_card`, with its evidence.
        run: the active one.
        manifest: of the data (`data_hash`).
        comparison: result of the run's evaluation; the model's figures are linked to it.
        root: folder of the data.
        settings: name, alias and keys.

    Raises:
        SettingsError: a key cannot be used.
    """
    client, name = mlflow.MlflowClient(), settings.name
    tags = _version_tags(folder, run, manifest, comparison)
    alias = settings.alias
    run.dataset(comparison.dataset, manifest["data_hash"], root, "training")
    existing = find_same_model(client, name, tags, read_evidence(folder), settings.signing)
    if existing is None and (earlier := latest_of_model(client, name, tags)):
        # The same model would pass the same gate again, whatever its new evidence is.
        tags |= versions.rollback_tags(earlier)
    registered = existing or _new_version(folder, run, tags, comparison, settings)
    if existing is None:
        summary = ", ".join(tags[tag] for tag in (*RUN_TAGS, "headline") if tags.get(tag))
        log.info("%s version %s is registered: %s", name, registered.version, summary)
    else:
        log.info("%s version %s is this checkpoint already", name, registered.version)
    # An earlier call may have been killed between a version and its description.
    if not registered.description:
        client.update_model_version(name, registered.version, _version_description(folder))
    if not client.get_registered_model(name).description:
        about = _model_description(comparison.dataset, alias)
        client.update_registered_model(name, about)
    if alias is not None:
        client.set_registered_model_alias(name, alias, registered.version)
    return Registered(
        name=name,
        version=int(registered.version),
        alias=alias,
        run_id=registered.run_id or run.run_id,
        model_uri=f"models:/{name}/{registered.version}",
        fresh=existing is None,
    )


def requirements(folder: Path) -> list[str]:
    """The pip requirements to serve an exported model, pinned to the installed versions."""
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    names = list(SERVING_PACKAGES)
    if config["model_cfg"]["text_cfg"].get("hf_tokenizer_name"):
        names.append(TOKENIZER_PACKAGE)
    # A local build's suffix (+cpu) is on no package index.
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def _version_tags(
    folder: Path, run: RunLog, manifest: Mapping[str, Any], comparison: Comparison
) -> dict[str, str]:
    """MLflow tags of a new version: recipe, main metrics, fingerprints, without unknown values."""
    record = read_record(folder)
    headlines = {
        f"{row.benchmark}/{row.metric}/{row.name}": round(row.estimate.value, 2)
        for row in comparison.rows
        if row.headline
    }
    run_tags = mlflow.MlflowClient().get_run(run.run_id).data.tags
    tags = {
        **{name: str(record[name]) for name in RUN_TAGS},
        "headline": headline(comparison.rows),
        "base_model": record["name"],
        "base_fingerprint": record.get("training", {}).get("fingerprint", {}).get("model"),
        "fingerprint": record["fingerprint"],
        "data_hash": manifest["data_hash"],
        "git_commit": run_tags.get("git_commit", UNKNOWN_COMMIT),
        "checkpoint_sha256": record["checkpoint_sha256"],
        "precision": record["precision"],
        "export_format": str(record["export_format"]),
        "benchmarks": json.dumps(headlines),
    }
    return {name: str(value) for name, value in tags.items() if value is not None}


def _new_version(
    folder: Path,
    run: RunLog,
    tags: Mapping[str, str],
    comparison: Comparison,
    settings: RegistrationSettings,
) -> ModelVersion:
    """Log the exported model to the MLflow run and register it as a new version."""
    _delete_pending(run)
    with _without_bytecode():
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(SERVED_CODE),
            artifacts={ARTEFACT: str(folder)},
            signature=_model_signature(),
            input_example=_input_example(),
            pip_requirements=requirements(folder),
            tags=dict(tags),
        )
    run.metrics(run_metrics(comparison.rows, FINE_TUNED), model_id=info.model_id)
    client = mlflow.MlflowClient()
    with tempfile.TemporaryDirectory() as temporary:
        # MLflow writes MLmodel itself, so the logged folder is what is hashed and signed.
        logged = Path(mlflow.artifacts.download_artifacts(info.model_uri, dst_path=temporary))
        own = {**tags, FILES_TAG: files_digest(file_digests(logged))}
        version = mlflow.register_model(info.model_uri, settings.name, tags=own)
        # Only now is the version's number known. After a kill in between it cannot be used.
        for file in seal(version, logged, settings.signing):
            client.log_model_artifact(info.model_id, str(file))
    return version


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Context manager: imports write no `__pycache__` into the folder that MLflow logs."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _delete_pending(run: RunLog) -> None:
    """Delete logged models of the run that a killed registration left pending, and their files."""
    client = mlflow.MlflowClient()
    experiment = client.get_run(run.run_id).info.experiment_id
    of_run = f"source_run_id = '{run.run_id}'"
    for model in client.search_logged_models([experiment], of_run):
        if model.status == LoggedModelStatus.PENDING:
            files: Any = get_artifact_repository(model.artifact_location)
            files.delete_artifacts()
            client.delete_logged_model(model.model_id)


def _model_description(dataset: str, alias: str | None) -> str:
    """Text that describes the registered model and its aliases."""
    newest = f"`{alias}`: registered last, for `kedro run --pipeline=promotion`; " if alias else ""
    return (
        f"Image-text models fine-tuned by compo_pipeline on {dataset}; each version's description "
        f"is its model card. Aliases: {newest}`{CHAMPION}` is served; `{PREVIOUS}` is the former "
        "champion. `compo-pipeline versions` lists all versions."
    )


def _version_description(folder: Path) -> str:
    """The model card without its header, cut to the length that a registry stores."""
    card = (folder / CARD).read_text(encoding="utf-8").partition("\n---\n")[2].strip()
    if len(card) <= _DESCRIPTION_LENGTH:
        return card
    more = f"\n\n(The rest is in {CARD} of the version's files.)"
    return card[: _DESCRIPTION_LENGTH - len(more)] + more


def _model_signature() -> ModelSignature:
    """MLflow signature of the served model: input and output columns, and parameters."""
    from compo_pipeline.versions.model import PARAMS

    outputs: dict[str, Any] = {
        "similarity": "double",
        "similarities": Array("double"),
        "embedding": Array("double"),
        "texts": Array("string"),
        "label": "string",
        "probability": "double",
        "probabilities": Array("double"),
    }
    return ModelSignature(
        inputs=Schema([ColSpec("string", name, required=False) for name in ("image", "text")]),
        outputs=Schema([ColSpec(kind, name, required=False) for name, kind in outputs.items()]),
        params=ParamSchema(
            [
                ParamSpec(name, "string", default, shape=(-1,) if name != "task" else None)
                for name, default in PARAMS.items()
            ]
        ),
    )


def _input_example() -> tuple[pd.DataFrame, dict[str, Any]]:
    """MLflow input example: a small grey image as base64, and captions to rank for it."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "grey").save(buffer, "PNG")
    image = base64.b64encode(buffer.getvalue()).decode()
    texts = ["a grey square", "two cats"]
    return pd.DataFrame({"image": [image]}), {"task": "rank", "texts": texts}
