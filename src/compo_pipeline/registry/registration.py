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

from compo_pipeline.models import weights
from compo_pipeline.models.export import Precision, export
from compo_pipeline.models.identity import CONFIG_FILE, file_sha256, read_record
from compo_pipeline.models.loading import load
from compo_pipeline.registry.git import UNKNOWN
from compo_pipeline.registry.record import Record

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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """The YAML key `registration`.

    Attributes:
        name: the registered model.
        alias: given to the version, taken from the one that had it.
        precision: of the exported weights, fp32 or fp16.
    """

    name: str = "compo-clip"
    alias: str = "challenger"
    precision: Precision = "fp32"


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of the registered model; `fresh` says whether it was made just now."""

    name: str
    version: int
    alias: str
    run_id: str
    model_uri: str
    fresh: bool


def export_for(checkpoint: Path, folder: Path, method: str, settings: RegistrationSettings) -> Path:
    """Write a checkpoint as the folder to register; its record says where it came from."""
    metadata = {
        **read_record(checkpoint),
        "method": method,
        "checkpoint_sha256": file_sha256(weights.find(checkpoint)),
    }
    return export(load(checkpoint), folder, precision=settings.precision, metadata=metadata)


def register(
    folder: Path,
    record: Record,
    manifest: Mapping[str, Any],
    metrics: Mapping[str, Any],
    settings: RegistrationSettings,
) -> Registered:
    """Log an exported folder to the active run as a model, and register it.

    A version of the same checkpoint in the same precision is the same model: it gets the alias,
    and no second one is made.

    Args:
        folder: written by `export_for`.
        record: the active run.
        manifest: of the data (`data_hash`).
        metrics: by role; those of `fine_tuned` are shown with the model.
        settings: name and alias.
    """
    import mlflow

    client = mlflow.MlflowClient()
    tags = _tags(folder, record, manifest)
    found = _registered_before(client, tags, settings.name)
    if found is None:
        registered = _new_version(folder, record, tags, metrics, settings.name)
        log.info("registered %s version %s", settings.name, registered.version)
    else:
        registered = found
        log.info("%s version %s already is this checkpoint", settings.name, registered.version)
    client.set_registered_model_alias(settings.name, settings.alias, registered.version)
    return Registered(
        name=settings.name,
        version=int(registered.version),
        alias=settings.alias,
        run_id=registered.run_id or record.run_id,
        model_uri=f"models:/{settings.name}/{registered.version}",
        fresh=found is None,
    )


def _tags(folder: Path, record: Record, manifest: Mapping[str, Any]) -> dict[str, str]:
    identity = read_record(folder)
    return {
        "method": identity["method"],
        "base_model": identity["name"],
        "data_hash": manifest["data_hash"],
        "git_commit": record.tag("git_commit") or UNKNOWN,
        "checkpoint_sha256": identity["checkpoint_sha256"],
        "precision": identity["precision"],
    }


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
    metrics: Mapping[str, Any],
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
    record.metrics({"fine_tuned": metrics.get("fine_tuned", {})}, model_id=info.model_id)
    return mlflow.register_model(info.model_uri, name, tags=dict(tags))


def _signature() -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    return ModelSignature(
        inputs=Schema([ColSpec("string", "image"), ColSpec("string", "text")]),
        outputs=Schema([ColSpec("double", "similarity")]),
    )


def _example() -> pd.DataFrame:
    """One row: a small grey picture as base64, and a caption."""
    import pandas as pd
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "grey").save(buffer, "PNG")
    picture = base64.b64encode(buffer.getvalue()).decode()
    return pd.DataFrame({"image": [picture], "text": ["a grey square"]})


def requirements(folder: Path) -> list[str]:
    """Pinned packages that serve an exported folder, as installed here."""
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    names = list(SERVED_WITH)
    if config["model_cfg"]["text_cfg"].get("hf_tokenizer_name"):
        names.append("transformers")
    # A local build's suffix (+cpu) is on no package index.
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]
