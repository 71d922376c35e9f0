"""Names of pipelines, commands and settings that no longer exist, with what to use instead."""

from __future__ import annotations

_BENCHMARK = "kedro run --pipeline=benchmark, which writes item_changes.parquet"
_COMPARED = "tuning.objective.retrieval or tuning.objective.zero_shot"
_IMPORT = "compo-pipeline import-model (docs/reference/models.md)"
_TORCHRUN = "torchrun ... --no-python compo-pipeline train (docs/how-to/scale.md)"
# As they are typed; a setting stands for those below it.
REMOVED = {
    "--pipeline=benchmarks_available": "compo-pipeline benchmarks",
    "--pipeline=benchmark_diff": _BENCHMARK,
    "--pipeline=copy": "kedro run --pipeline=registration --params tracking.uri=<registry>",
    "--pipeline=repair": "MlflowClient().delete_registered_model_alias of MLflow",
    "--pipeline=language": "kedro run --pipeline=shipped --namespaces=language",
    "--pipeline=raw": "kedro run --pipeline=ingest --to-nodes=data.prepare_source",
    "--pipeline=recaption": "kedro run --pipeline=ingest --to-nodes=data.recaption_images",
    "--pipeline=rollback": "kedro run --pipeline=promotion --params promotion.rollback=true",
    **dict.fromkeys(("--pipeline=export", "export"), "compo-pipeline export-model"),
    "--pipeline=pretraining": "kedro run --pipeline=shipped --namespaces=pretraining",
    "compo-pipeline worker": _TORCHRUN,
    "compo-pipeline dvc": "dvc.yaml and recipes/recipes.yml, which are written by hand",
    "compo-pipeline recipes": "docs/reference/recipes.md",
    "compo-pipeline import-phrases": "a table (views.from_table.columns.phrases), or spaCy",
    **dict.fromkeys(("model.layout", "model.mixed_with", "model.quick_gelu"), _IMPORT),
    "model.tokenizer": _IMPORT,
    **dict.fromkeys(("attention.regions", "attention.limit"), "attention.phrases"),
    "counterfactuals.transformers": "vllm serve <folder>, and counterfactuals.endpoint",
    "counterfactuals.diffusion.seed": "counterfactuals.seed",
    "counterfactuals.scenes.seed": "counterfactuals.seed",
    "model.seed": "compo-pipeline import-model --seed",
    "data.format=pixelprose": "data.format=table and data.columns (conf/cc12m)",
    "data.format=cc3m_coca": "data.format=img2dataset and data.columns.caption (conf/fsc_cc3m)",
    "data.format=dreamlip": "data.format=img2dataset and data.captions (conf/siglip_cc3m)",
    "evaluation.image_precision": "evaluation.precision",
    "evaluation.text_precision": "evaluation.precision",
    "evaluation.attention": "kedro run --pipeline=attention",
    "monitoring.window_hours": "monitoring.since",
    "monitoring.images": "the images of the request log (docs/how-to/monitoring.md)",
    "prepare.engine": "prepare.workers (processes) or prepare.address (Ray)",
    "promotion.copy": "kedro run --pipeline=registration --params tracking.uri=<registry>",
    "recipe": "docs/reference/recipes.md",
    "registration.signing.password_variable": "a private key without a password (openssl pkey)",
    "remote.store": "dvc push and dvc pull",
    "benchmarks.suites": "benchmarks.sets, whose members need no suite",
    "serving.canary": "serve --shadow, or a proxy in front of two servers",
    "serving.limits.request_pixels": "serving.limits.pixels and serving.limits.seconds",
    "subset": "--params dataset=<name>_1000,data.sample.rows=1000",
    "suite.diff": _BENCHMARK,
    "suite": "kedro run --pipeline=evaluation, which counts the items among the training rows",
    "tracking.system_metrics": "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true in the environment",
    "training.validation.benchmarks": "tuning.benchmarks, which has root and images",
    **dict.fromkeys(("training.distributed.nnodes", "training.distributed.node_rank"), _TORCHRUN),
    "tuning.objective.second": _COMPARED,
    "tuning.confirmation.seeds": "tuning.confirmation, a number",
    "tuning.study.warm_start": "study.enqueue_trial of Optuna",
}


def replacement(name: str) -> str:
    """Hint "; it was removed: use x" for a removed name; empty for any other."""
    found = (use for old, use in REMOVED.items() if f"{name}.".startswith(f"{old}."))
    return next((f"; it was removed: use {use}" for use in found), "")
