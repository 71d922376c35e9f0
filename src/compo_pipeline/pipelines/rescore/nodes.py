"""Nodes of the pipeline `rescore`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlflow

from compo_pipeline.benchmarks.items import Subtask
from compo_pipeline.benchmarks.settings import BenchmarksSettings
from compo_pipeline.core.compute import choose_device
from compo_pipeline.core.records import Caption
from compo_pipeline.core.settings import SettingsError
from compo_pipeline.evaluation.comparison import BASE, FINE_TUNED
from compo_pipeline.evaluation.contamination import TrainingRows
from compo_pipeline.evaluation.evaluate import compare_run, score_models
from compo_pipeline.evaluation.settings import EvaluationSettings
from compo_pipeline.evaluation.slices import ItemSlices, scored_items
from compo_pipeline.models.settings import ModelSettings
from compo_pipeline.models.weights import read_record
from compo_pipeline.registry import runs as store
from compo_pipeline.registry import versions
from compo_pipeline.registry.registration import register, write_measured
from compo_pipeline.registry.settings import RegistrationSettings
from compo_pipeline.registry.tracking_settings import TrackingSettings
from compo_pipeline.registry.verification import load_base, verified


def rescore_version(
    items: Sequence[Subtask],
    slices: ItemSlices,
    known: TrainingRows,
    valid_captions: Sequence[Caption],
    manifest: Mapping[str, Any],
    root: Path,
    base: ModelSettings,
    evaluation: EvaluationSettings,
    registration: RegistrationSettings,
    tracking: TrackingSettings,
) -> dict[str, Any]:
    """Score a version and its base again, and register it as a new version with these scores.

    No stored score and no stored overlap is used. The new version takes all aliases of the old one,
    and what a promotion or a rollback has said of it, since the model is the same.

    Raises:
        SettingsError: there is no such version, it was trained on other data or from another base,
            or the private key cannot be used.
        VersionError: its files are not those that were registered.
    """
    store.configure(tracking, Path.cwd())
    name, alias = registration.name, registration.rescore or registration.alias
    if alias is None:
        raise SettingsError("registration.alias: expected the alias of the version, got null")
    key = "registration.alias" if registration.rescore is None else "registration.rescore"
    version = versions.find(name, alias, None, key)
    with tempfile.TemporaryDirectory() as folder:
        files = verified(version, Path(folder), registration.signing)
        if files.lineage.data_hash != manifest["data_hash"]:
            raise SettingsError(
                f"dataset: version {version.version} of {name} was trained on data with the "
                f"fingerprint {(files.lineage.data_hash or 'none')[:16]}, this dataset has "
                f"{manifest['data_hash'][:16]}; use the --env and the data of its training"
            )
        device = str(choose_device(evaluation.device, key="evaluation.device"))
        method = read_record(files.export)["method"]
        scored = score_models(
            items,
            {
                BASE: lambda: load_base(files.lineage, base, device),
                FINE_TUNED: lambda: files.load().to(device),
            },
            evaluation,
            named={FINE_TUNED: (method, method)},
        )
        about = known, version.tags["dataset"], evaluation, BenchmarksSettings()
        comparison = compare_run(scored, items, slices, *about)
        measured = comparison, scored.rows, scored_items(items, slices)
        write_measured(files.export, *measured, valid_captions, root, evaluation, {})
        tags = {"rescored_from": f"models:/{name}/{version.version}"}
        with store.adopt(store.open_run(f"rescored {name} {version.version}", tags)) as run:
            tags |= versions.lasting_decision(version)
            unnamed = replace(registration, alias=None)
            made = register(files.export, run, manifest, comparison, root, unnamed, tags)
    client = mlflow.MlflowClient()
    for each, number in client.get_registered_model(name).aliases.items():
        if int(number) == int(version.version):
            client.set_registered_model_alias(name, each, str(made.version))
    return asdict(replace(made, alias=alias))
