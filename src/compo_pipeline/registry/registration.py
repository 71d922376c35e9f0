"""From an exported folder to a version in MLflow's model registry."""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compo_pipeline.evaluation.comparison import FINE_TUNED
from compo_pipeline.evaluation.evaluate import Comparison
from compo_pipeline.models import weights
from compo_pipeline.models.export import Precision, export
from compo_pipeline.models.identity import CONFIG_FILE, read_record
from compo_pipeline.models.loading import load
from compo_pipeline.registry import figures, lineage, model_card
from compo_pipeline.registry.aliases import CHAMPION, PREVIOUS, refuse_gates_own
from compo_pipeline.registry.git import UNKNOWN
from compo_pipeline.registry.record import Record
from compo_pipeline.storage import file_sha256

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models import ModelSignature

# What the served model imports; MLflow's own inference would load the model in a new process
# and look packages up.
SERVED_WITH = (
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

# What names a run.
RUN_NAMES = ("dataset", "method", "variant", "seed")
# Of the folder's files and of compo.json; a reader of registered folders may ask for it.
EXPORT_FORMAT = 1
# What a server's database holds of a description.
_LONGEST_DESCRIPTION = 5000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """The YAML key `registration`.

    Attributes:
        name: the registered model.
        alias: given to the version, taken from the one that had it; null gives none.
        precision: of the exported weights, fp32 or fp16.
        licence: of the weights, for the model card, as Hugging Face's hub names it; null says that
            those of the base and of the data apply.
    """

    name: str = "compo-clip"
    alias: str | None = "challenger"
    precision: Precision = "fp32"
    licence: str | None = None

    def __post_init__(self) -> None:
        """A new version waits for the gate."""
        if self.alias is not None:
            refuse_gates_own("alias", self.alias)


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of the registered model; `fresh` says whether it was made just now."""

    name: str
    version: int
    alias: str | None
    run_id: str
    model_uri: str
    fresh: bool


def export_for(
    checkpoint: Path, folder: Path, run: Mapping[str, Any], settings: RegistrationSettings
) -> Path:
    """Write a checkpoint as the folder to register; its record says where it came from.

    Args:
        checkpoint: of a run.
        folder: where the export goes.
        run: that made the checkpoint: dataset, method, variant and seed.
        settings: the precision.
    """
    metadata = {
        **read_record(checkpoint),
        **{name: run[name] for name in RUN_NAMES},
        "export_format": EXPORT_FORMAT,
        "checkpoint_sha256": file_sha256(weights.find(checkpoint)),
    }
    return export(load(checkpoint), folder, precision=settings.precision, metadata=metadata)


def register(
    folder: Path,
    record: Record,
    manifest: Mapping[str, Any],
    comparison: Comparison,
    root: str,
    settings: RegistrationSettings,
) -> Registered:
    """Log an exported folder to the active run as a model, and register it.

    A version of the same checkpoint in the same precision is the same model: it gets the alias,
    and no second one is made.

    Args:
        folder: written by `export_for`, its model card by `model_card.write`.
        record: the active run.
        manifest: of the data (`data_hash`).
        comparison: what the run's evaluation found; the model's own figures are shown with it.
        root: where the data lie.
        settings: name and alias.
    """
    import mlflow

    client = mlflow.MlflowClient()
    tags = _tags(folder, record, manifest, comparison)
    lineage.training_data(record, comparison.dataset, manifest["data_hash"], root)
    told = ", ".join(tags[name] for name in (*RUN_NAMES, "headline") if tags.get(name))
    found = _registered_before(client, tags, settings.name)
    if found is None:
        registered = _new_version(folder, record, tags, comparison, settings.name)
        log.info("%s version %s is registered: %s", settings.name, registered.version, told)
    else:
        registered = found
        log.info("%s version %s is this checkpoint already", settings.name, registered.version)
    # A kill may have come between an earlier call's version and its description.
    if not registered.description:
        client.update_model_version(settings.name, registered.version, _description(folder))
    if not client.get_registered_model(settings.name).description:
        client.update_registered_model(settings.name, _about(comparison.dataset, settings.alias))
    if settings.alias is not None:
        client.set_registered_model_alias(settings.name, settings.alias, registered.version)
    return Registered(
        name=settings.name,
        version=int(registered.version),
        alias=settings.alias,
        run_id=registered.run_id or record.run_id,
        model_uri=f"models:/{settings.name}/{registered.version}",
        fresh=found is None,
    )


def _tags(
    folder: Path, record: Record, manifest: Mapping[str, Any], comparison: Comparison
) -> dict[str, str]:
    """What a version's tags say; what nobody noted is left out."""
    identity = read_record(folder)
    mark = identity.get("training", {}).get("fingerprint", {})
    tags = {
        **{name: str(identity[name]) for name in RUN_NAMES},
        "headline": figures.line(comparison.rows),
        "base_model": identity["name"],
        "base_fingerprint": mark.get("model"),
        "fingerprint": identity["fingerprint"],
        "data_hash": manifest["data_hash"],
        "git_commit": record.tag("git_commit") or UNKNOWN,
        "checkpoint_sha256": identity["checkpoint_sha256"],
        "precision": identity["precision"],
        "export_format": str(identity["export_format"]),
        "benchmarks": _summary(comparison),
    }
    return {name: value for name, value in tags.items() if value is not None}


def _summary(comparison: Comparison) -> str:
    """The headline figures, per cent, as JSON."""
    rows = [row for row in comparison.rows if row.headline]
    figures = {f"{r.benchmark}/{r.metric}/{r.name}": round(r.fine_tuned.value, 2) for r in rows}
    return json.dumps(figures)


def _registered_before(client: Any, tags: Mapping[str, str], name: str) -> ModelVersion | None:
    query = (
        f"name = '{name}' AND tags.checkpoint_sha256 = '{tags['checkpoint_sha256']}' "
        f"AND tags.precision = '{tags['precision']}'"
    )
    versions = client.search_model_versions(query)
    return max(versions, key=lambda each: int(each.version), default=None)


def _new_version(
    folder: Path,
    record: Record,
    tags: Mapping[str, str],
    comparison: Comparison,
    name: str,
) -> ModelVersion:
    import mlflow

    info = mlflow.pyfunc.log_model(
        name="model",
        python_model=str(Path(__file__).with_name("model.py")),
        artifacts={"model": str(folder)},
        signature=_signature(),
        input_example=_example(),
        pip_requirements=requirements(folder),
        tags=dict(tags),
    )
    record.metrics(figures.metrics(comparison.rows, FINE_TUNED), model_id=info.model_id)
    return mlflow.register_model(info.model_uri, name, tags=dict(tags))


def _about(dataset: str, alias: str | None) -> str:
    waits = f"`{alias}`, registered last, waits for `kedro run --pipeline=promotion`; "
    return (
        f"Image-text models fine-tuned by compo_pipeline on {dataset}; each version's description "
        f"is its model card. Aliases: {waits if alias else ''}`{CHAMPION}` is served; "
        f"`{PREVIOUS}` was, before it. `compo-pipeline versions` lists all versions."
    )


def _description(folder: Path) -> str:
    """The model card, as much of it as a registry keeps; its header is for another reader."""
    card = (folder / model_card.FILE).read_text(encoding="utf-8").partition("\n---\n")[2].strip()
    if len(card) <= _LONGEST_DESCRIPTION:
        return card
    more = f"\n\n(The rest is in {model_card.FILE} of the version's files.)"
    return card[: _LONGEST_DESCRIPTION - len(more)] + more


def _signature() -> ModelSignature:
    """Columns and parameters of the served model; what each task reads of them, model.py says."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    from compo_pipeline.registry.model import PARAMS

    answers: dict[str, Any] = {
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
        outputs=Schema([ColSpec(kind, name, required=False) for name, kind in answers.items()]),
        params=ParamSchema(
            [
                ParamSpec(name, "string", default, shape=(-1,) if name != "task" else None)
                for name, default in PARAMS.items()
            ]
        ),
    )


def _example() -> tuple[pd.DataFrame, dict[str, Any]]:
    """A small grey image as base64, and captions to rank for it."""
    import pandas as pd
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "grey").save(buffer, "PNG")
    image = base64.b64encode(buffer.getvalue()).decode()
    texts = ["a grey square", "two cats"]
    return pd.DataFrame({"image": [image]}), {"task": "rank", "texts": texts}


def requirements(folder: Path) -> list[str]:
    """Pinned packages that serve an exported folder, as installed here."""
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    names = list(SERVED_WITH)
    if config["model_cfg"]["text_cfg"].get("hf_tokenizer_name"):
        names.append("transformers")
    # A local build's suffix (+cpu) is on no package index.
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]
