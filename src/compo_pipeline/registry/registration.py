"""Registration: export a checkpoint with its model card, register it in MLflow, and sign it."""

from __future__ import annotations

import base64
import io
import json
import logging
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from mlflow.entities.model_registry import ModelVersion
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array
from PIL import Image

from compo_pipeline.benchmarks.items import Role
from compo_pipeline.core.compute import choose_device
from compo_pipeline.core.hashing import file_hash
from compo_pipeline.core.records import Caption, Score, ScoredItem
from compo_pipeline.core.tables import Table
from compo_pipeline.evaluation.comparison import FINE_TUNED, run_metrics
from compo_pipeline.evaluation.conclusions import headline
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.evaluation.roles import ROLE_LABELS, absent_roles
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.methods import registry as methods
from compo_pipeline.models import weights
from compo_pipeline.models.loading import export, load
from compo_pipeline.models.weights import CONFIG_FILE, read_record
from compo_pipeline.registry import versions
from compo_pipeline.registry.evidence import MODELS, Evidence, read_evidence, write_evidence
from compo_pipeline.registry.lineage import FILES_TAG, file_digests, write_lineage
from compo_pipeline.registry.materials import UNKNOWN, Material
from compo_pipeline.registry.reference import reference_rows, write_reference
from compo_pipeline.registry.runs import RunLog
from compo_pipeline.registry.settings import (
    MOST_REFERENCE_ROWS,
    RegistrationSettings,
    SigningSettings,
)
from compo_pipeline.registry.verification import (
    DECODER,
    SERVED_CODE,
    VersionError,
    download,
    exported_folder,
    load_checked,
    refuse_code,
    verified,
    write_probes,
)

# Tags that identify a run for readers.
RUN_TAGS = ("dataset", "method", "variant", "seed")
# Version of the exported folder's files and of compo.json, for readers of registered folders.
EXPORT_FORMAT = 5
CARD = "README.md"
# Name of the exported folder among the logged model's artefacts.
ARTEFACT = "model"
# Packages that the served code imports. MLflow's own inference would load the model in a new
# process and look packages up.
SERVING_PACKAGES = (
    "mlflow",
    "numpy",
    "open_clip_torch",
    "pandas",
    "pillow",
    "safetensors",
    "timm",
    "torch",
    "torchvision",
)
# Tags that versions of the same model have in common.
_SAME_MODEL = ("checkpoint_sha256", "precision")
# Limit of a server's database.
_DESCRIPTION_LENGTH = 5000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered model version.

    The field `fresh` says whether this call created it.
    """

    name: str
    version: int
    alias: str | None
    run_id: str
    model_uri: str
    fresh: bool


def export_with_card(
    checkpoint: Path,
    folder: Path,
    run: Mapping[str, Any],
    manifest: Mapping[str, Any],
    materials: Sequence[Material],
    comparison: Comparison,
    settings: RegistrationSettings,
    waive: Collection[Role] = (),
) -> Path:
    """Export a checkpoint into the folder to register: weights, provenance, probes, model card.

    Args:
        checkpoint: checkpoint of a run.
        folder: folder of the export.
        run: run that trained the checkpoint: `run_id`, method, variant and seed, and the note on
            its `rows`.
        manifest: manifest of the data (`data_hash`, `count`).
        materials: models and data sets that the checkpoint was made from, for the card.
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
        "checkpoint_sha256": file_hash(weights.find(checkpoint)),
    }
    export(loaded, folder, precision=settings.precision, metadata=metadata)
    write_probes(folder)
    licensed = [one.licensed(settings.licences) for one in materials]
    write_card(folder, settings, manifest, licensed, comparison, run["run_id"], waive)
    return folder


def write_measured(
    folder: Path,
    comparison: Comparison,
    scores: Table[Score],
    items: Iterable[ScoredItem],
    captions: Sequence[Caption],
    root: Path,
    evaluation: EvaluationSettings,
    selecting: Mapping[str, str],
) -> None:
    """Write the measurements of an exported model into its folder: evidence, reference sample.

    Args:
        folder: folder of the export.
        comparison: comparison of the model with its base.
        scores: scores of the model and of its base.
        items: items that were scored.
        captions: the valid ones of all splits.
        root: folder of their images.
        evaluation: device and batches for the reference sample.
        selecting: benchmarks whose items also selected weights or settings, and where they are.
    """
    rows = {role: scores.having("model", [comparison.models[role].name]) for role in MODELS}
    write_evidence(folder, Evidence.from_comparison(comparison, selecting), rows, items)
    exported = load(folder).to(choose_device(evaluation.device, key="evaluation.device"))
    write_reference(folder, exported, captions, root, MOST_REFERENCE_ROWS, evaluation)


def write_card(
    folder: Path,
    settings: RegistrationSettings,
    manifest: Mapping[str, Any],
    materials: Sequence[Material],
    comparison: Comparison,
    run_id: str,
    waive: Collection[Role] = (),
) -> Path:
    """Write the model card of an exported folder, with a header that Hugging Face's hub reads.

    Args:
        folder: folder of the export. Its record holds the training's settings.
        settings: name and licence.
        manifest: manifest of the data.
        materials: materials of the version, for its table of licences.
        comparison: result of the run's evaluation.
        run_id: id of the run.
        waive: roles without which the version may pass its gate (`promotion.waive`).
    """
    record = read_record(folder)
    fingerprint = record.get("training", {}).get("fingerprint", {})
    recipe = ("objective", "training", "seed", "views")
    environment = Environment(
        loader=PackageLoader("compo_pipeline.registry"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    card = environment.get_template("model_card.md").render(
        settings=settings,
        method=methods.label(record["method"]),
        record=record,
        training=record.get("training", {}),
        manifest=manifest,
        comparison=comparison,
        run_id=run_id,
        materials=materials,
        unknown=UNKNOWN,
        rows=[row for row in comparison.rows if row.headline],
        absent={
            role: ROLE_LABELS[role]
            for role in absent_roles(row.benchmark for row in comparison.rows)
        },
        waive=waive,
        guessed=[
            each.label
            for each in comparison.rows
            if each.chance is not None and each.estimate.low <= each.chance
        ],
        recipe=yaml.safe_dump(
            {key: fingerprint[key] for key in recipe if key in fingerprint}, sort_keys=False
        ),
    )
    (folder / CARD).write_text(card, encoding="utf-8")
    return folder / CARD


def register(
    folder: Path,
    run: RunLog,
    manifest: Mapping[str, Any],
    comparison: Comparison,
    root: Path,
    settings: RegistrationSettings,
    further: Mapping[str, str] | None = None,
) -> Registered:
    """Log an exported folder to a run as a model, register it, and sign it if configured.

    If an intact version of the same checkpoint in the same precision exists, scored in the same way
    and with the same overlaps with the training data, that version gets the alias, and no second
    one is created.

    Args:
        folder: written by `export_with_card`, with its evidence.
        run: run that trained the model.
        manifest: manifest of the data (`data_hash`).
        comparison: result of the run's evaluation; the model's figures are linked to it.
        root: folder of the data.
        settings: name, alias and keys.
        further: further tags of a new version, which override its own.

    Raises:
        SettingsError: a key cannot be used.
    """
    client, name = mlflow.MlflowClient(), settings.name
    tags = {**_version_tags(folder, manifest, comparison), **(further or {})}
    run.dataset(comparison.dataset, manifest["data_hash"], str(root), "training")
    made = earlier = _latest_of_model(client, name, tags)
    fresh = earlier is None or not _is_same(earlier, folder, settings.signing)
    if fresh:
        # The same model would pass the same gate again, whatever its new evidence is.
        tags |= versions.lasting_decision(earlier, ("rolled back",)) if earlier else {}
        made = _new_version(folder, run, tags, comparison, settings)
    assert made is not None
    shown = ", ".join(tags[tag] for tag in (*RUN_TAGS, "headline") if tags.get(tag))
    said = f"is registered: {shown}" if fresh else "is this checkpoint already"
    log.info("%s version %s %s", name, made.version, said)
    # An earlier call may have been killed between a version and its description.
    if not made.description:
        client.update_model_version(name, made.version, _version_description(folder))
    if settings.alias is not None:
        client.set_registered_model_alias(name, settings.alias, made.version)
    return Registered(
        name=name,
        version=int(made.version),
        alias=settings.alias,
        run_id=made.run_id or run.run_id,
        model_uri=f"models:/{name}/{made.version}",
        fresh=fresh,
    )


def requirements(folder: Path) -> list[str]:
    """The pip requirements to serve an exported model, pinned to the installed versions."""
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    names = list(SERVING_PACKAGES)
    if config["model_cfg"]["text_cfg"].get("hf_tokenizer_name"):
        names.append("transformers")
    # A local build's suffix (+cpu) is on no package index.
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def sign(made: ModelVersion, files: Path, keys: SigningSettings) -> list[Path]:
    """Check a new version's folder, and write its lineage and, with keys, signature.

    Args:
        made: the version, with the tags that the lineage repeats.
        files: MLflow's model folder, copied back from the store.
        keys: the configured keys.

    Returns:
        The new files, for the store.

    Raises:
        SettingsError: the private key cannot be used.
        ValueError: the folder is not what was logged.
    """
    refuse_code(files, signed=False)
    load_checked(exported_folder(files), made.tags["fingerprint"])
    return write_lineage(made, files, keys)


def _latest_of_model(client: Any, name: str, tags: Mapping[str, str]) -> ModelVersion | None:
    """The latest version of the same checkpoint in the same precision, or None if there is none."""
    same = " AND ".join(f"tags.{tag} = '{tags[tag]}'" for tag in _SAME_MODEL)
    found = client.search_model_versions(f"name = '{name}' AND {same}")
    return max(found, key=lambda each: int(each.version), default=None)


def _is_same(found: ModelVersion, export: Path, keys: SigningSettings) -> bool:
    """Whether a version's files are the registered ones, with an export's evidence."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = verified(found, Path(folder), keys)
            files.load()
            same = files.evidence == read_evidence(export)
            return same and reference_rows(files.export) == reference_rows(export)
    except VersionError as error:
        log.warning("Not used again: %s", error.message)
        return False


def _version_tags(
    folder: Path, manifest: Mapping[str, Any], comparison: Comparison
) -> dict[str, str]:
    """MLflow tags of a new version: recipe, main metrics, fingerprints, without unknown values."""
    record = read_record(folder)
    tags = {
        **{name: str(record[name]) for name in RUN_TAGS},
        "headline": headline(comparison.rows),
        "base_model": record["name"],
        "base_fingerprint": record.get("training", {}).get("fingerprint", {}).get("model"),
        "fingerprint": record["fingerprint"],
        "data_hash": manifest["data_hash"],
        "checkpoint_sha256": record["checkpoint_sha256"],
        "precision": record["precision"],
    }
    return {name: str(value) for name, value in tags.items() if value is not None}


def _new_version(
    folder: Path,
    run: RunLog,
    tags: Mapping[str, str],
    comparison: Comparison,
    settings: RegistrationSettings,
) -> ModelVersion:
    """Log the exported model to the MLflow run, register it as a new version, and sign it."""
    info = Model.log(
        None,
        mlflow.pyfunc,
        name="model",
        run_id=run.run_id,
        python_model=str(SERVED_CODE),
        code_paths=[str(DECODER)],
        artifacts={ARTEFACT: str(folder)},
        signature=_model_signature(),
        input_example=_input_example(),
        pip_requirements=requirements(folder),
        tags=dict(tags),
    )
    run.metrics(run_metrics(comparison.rows, FINE_TUNED), model_id=info.model_id)
    with tempfile.TemporaryDirectory() as temporary:
        # MLflow writes MLmodel itself, so the logged folder is what is hashed and signed.
        logged = download(info.model_uri, Path(temporary))
        own = {**tags, FILES_TAG: file_digests(logged)[1]}
        made = mlflow.register_model(info.model_uri, settings.name, tags=own)
        # Only now is the version's number known. After a kill in between it cannot be used.
        for file in sign(made, logged, settings.signing):
            mlflow.MlflowClient().log_model_artifact(info.model_id, str(file))
    return made


def _version_description(folder: Path) -> str:
    """The model card without its header, cut to the length that a registry stores."""
    card = (folder / CARD).read_text(encoding="utf-8").partition("\n---\n")[2].strip()
    more = f"\n\n(The rest is in {CARD} of the version's files.)"
    long = len(card) > _DESCRIPTION_LENGTH
    return card[: _DESCRIPTION_LENGTH - len(more)] + more if long else card


def _model_signature() -> ModelSignature:
    """MLflow signature of the served model: input and output columns, and parameters."""
    from compo_pipeline.registry.model import PARAMS

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
