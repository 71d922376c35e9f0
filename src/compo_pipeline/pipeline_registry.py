"""The pipelines that `kedro run --pipeline=...` knows."""

from __future__ import annotations

from importlib import import_module

from kedro.pipeline import Pipeline

from compo_pipeline.pipelines import training_inputs

# The whole chain in order: together they train and evaluate a model.
TRAIN_EVAL = (
    "raw",
    "ingest",
    "validation",
    "counterfactuals",
    "views",
    "training",
    "evaluation",
    "registration",
)
# Pipelines of the artefacts that the package ships.
APART = ("language", "pretraining")
# Pipelines on results of the chain: captions, views, a finished run, registered versions.
AFTERWARDS = ("half_truths", "tuning", "wise_ft", "attention", "export", "rescore", "promotion")
# Many runs of the chain, compared; their data are made once.
COMPARISON = ("raw", "ingest", "validation", "comparison")
# Pipelines that need no training: models of any origin on the benchmarks.
SUITE = ("benchmark", "benchmark_diff", "benchmarks_available")
NAMES = (*TRAIN_EVAL, *APART, *AFTERWARDS, *SUITE, "comparison", "train_eval", "__default__")


def register_pipelines() -> dict[str, Pipeline]:
    """Pipelines by name; `__default__` is `train_eval`, the whole chain."""
    pipelines = {
        name: import_module(f"compo_pipeline.pipelines.{name}").create_pipeline()
        for name in (*TRAIN_EVAL, *APART, *AFTERWARDS, *SUITE, "comparison")
    }
    # Groups of `kedro viz`, and names for `kedro run --namespaces`; catalog entries have none.
    for name in TRAIN_EVAL:
        pipelines[name] = _named(pipelines[name], name)
    inputs = _named(training_inputs.create_pipeline(), "training")
    for name in ("training", "tuning"):
        pipelines[name] += inputs
    pipelines["train_eval"] = sum((pipelines[name] for name in TRAIN_EVAL), Pipeline([]))
    pipelines["comparison"] = sum((pipelines[name] for name in COMPARISON), Pipeline([]))
    pipelines["__default__"] = pipelines["train_eval"]
    return pipelines


def _named(pipeline: Pipeline, namespace: str) -> Pipeline:
    return Pipeline(pipeline, namespace=namespace, prefix_datasets_with_namespace=False)
