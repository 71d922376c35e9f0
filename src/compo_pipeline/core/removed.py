"""Names of pipelines, commands and settings that no longer exist, with what to use instead."""

from __future__ import annotations

_BENCHMARK = "kedro run --pipeline=benchmark, which writes item_changes.parquet"
_COMPARED = "tuning.objective.retrieval or tuning.objective.zero_shot"
_DRAWN_ALIKE = "nothing: words are drawn as the papers draw them"
_GPU = "nothing: a GPU where CUDA_VISIBLE_DEVICES shows one"
_IMPORT = "compo-pipeline import-model (docs/reference/models.md)"
_OPTUNA = "nothing: Optuna's TPE sampler and median pruner"
_TORCHRUN = "torchrun ... --no-python compo-pipeline train (docs/how-to/scale.md)"

_CONSTANTS = """
    attention.count attention.seed c2lip.objective.chunk c2lip.objective.equal_phrases
    counterfactuals.endpoint.checks counterfactuals.rules.attempts counterfactuals.rules.checks
    dac_mil.objective.negatives_in_contrast data.shares_seed evaluation.text_batch foils.images
    foils.seed ingest.near_duplicates ingest.shown language_model.steps monitoring.alpha
    monitoring.hardest monitoring.quantile monitoring.seed pretraining.precision pretraining.seed
    recaption.most_words recaption.repeated
    recaption.seed registration.reference_rows serving.connections serving.log.queue
    sneg.objective.negatives_in_contrast svlc_r.objective.negatives_in_contrast validation.shown
    wise_ft
"""
# As they are typed; a setting stands for those below it.
REMOVED = {
    **dict.fromkeys(_CONSTANTS.split(), "nothing: it is a constant now"),
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
    "compo-pipeline relocate": "nothing: the MLflow store of a moved project is found",
    "compo-pipeline import-phrases": "a table (views.from_table.columns.phrases), or spaCy",
    **dict.fromkeys(("model.layout", "model.mixed_with", "model.quick_gelu"), _IMPORT),
    "model.tokenizer": _IMPORT,
    **dict.fromkeys(("attention.regions", "attention.limit"), "attention.phrases"),
    "counterfactuals.transformers": "vllm serve <folder>, and counterfactuals.endpoint",
    "counterfactuals.rules.concreteness": _DRAWN_ALIKE,
    "counterfactuals.diffusion.seed": "counterfactuals.seed",
    "counterfactuals.retry": "nothing: every run tries again what has no image or answer",
    "recaption.transformers.device": _GPU,
    "evaluation.image_precision": "evaluation.precision",
    "evaluation.text_precision": "evaluation.precision",
    "evaluation.perceptual_hash": "nothing: images are compared by their bytes and names",
    **dict.fromkeys(
        (f"counterfactuals.scenes.{key}" for key in ("faithful", "cast", "adain", "wrong")),
        "nothing: images of scenes are exact",
    ),
    "evaluation.attention": "kedro run --pipeline=attention",
    "monitoring.images": "the images of the request log (docs/how-to/monitoring.md)",
    "paths": "nothing: data/ has them, by dataset, method, variant and seed",
    "prepare.engine": "prepare.workers (processes) or prepare.address (Ray)",
    "promotion.copy": "kedro run --pipeline=registration --params tracking.uri=<registry>",
    "promotion.settle": "nothing: a champion that moved meanwhile ends the promotion",
    "recipe": "docs/reference/recipes.md",
    "remote.store": "dvc push and dvc pull",
    **{f"{name}.views.concreteness": _DRAWN_ALIKE for name in ("clic", "fsc_clip", "negclip")},
    "benchmarks.suites": "benchmarks.sets, whose members need no suite",
    "cs_clip.views.unit_files": "nothing: units come from the parse",
    "serving.canary": "serve --shadow, or a proxy in front of two servers",
    "serving.limits.request_pixels": "serving.limits.pixels and serving.limits.seconds",
    "serving.log_format": "nothing: each line names its request",
    "subset": "--params dataset=<name>_1000,data.sample.rows=1000",
    "suite.diff": _BENCHMARK,
    "suite.references": "nothing: values of the papers stay beside the measured ones",
    "suite": "kedro run --pipeline=evaluation, which counts the items among the training rows",
    "tracking.system_metrics": "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=true in the environment",
    "training.validation.benchmarks": "tuning.benchmarks, which has root and images",
    **dict.fromkeys(("training.distributed.nnodes", "training.distributed.node_rank"), _TORCHRUN),
    "tuning.objective.second": _COMPARED,
    **dict.fromkeys(("tuning.study.sampler", "tuning.study.pruner"), _OPTUNA),
    "tuning.study.warm_start": "study.enqueue_trial of Optuna",
}


def replacement(name: str) -> str:
    """Hint "; it was removed: use x" for a removed name; empty for any other."""
    found = (use for old, use in REMOVED.items() if f"{name}.".startswith(f"{old}."))
    return next((f"; it was removed: use {use}" for use in found), "")
