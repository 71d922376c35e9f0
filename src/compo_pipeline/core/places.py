"""Paths of the folders for caches and intermediate state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paths:
    """Folders of state and caches, which are no entries of the catalog.

    Attributes:
        features: features of frozen image towers, for every trial; deleting them is always safe.
        counterfactuals_state: texts and images that all runs have made. The folder outlives what
            DVC deletes before a stage.
        recaptions_state: every answer of a captioning model that any run got; it outlives that too.
        resume: state to resume a training from; it outlives that too.
        embeddings: embeddings by every model that `kedro run --pipeline=benchmark` has scored;
            deleting them is always safe.
        model_output: results of the runs of a dataset, in <method>/<variant>/seed=<n>.
        tuning: records of a study.
        tuning_trials: states of its trials.
    """

    features: str
    counterfactuals_state: str
    recaptions_state: str
    resume: str
    embeddings: str
    model_output: str
    tuning: str
    tuning_trials: str


def paths_of(dataset: str, run: str) -> Paths:
    """Folders of a dataset and of a run, which is named `<method>/<variant>/seed=<n>`."""
    return Paths(
        features=f"data/04_feature/{dataset}/tower_features",
        counterfactuals_state=f"data/04_feature/{dataset}/counterfactuals_state",
        recaptions_state=f"data/02_intermediate/{dataset}/recaptions_state",
        resume=f"data/06_models/{dataset}/{run}/resume",
        embeddings="data/04_feature/embeddings",
        model_output=f"data/07_model_output/{dataset}",
        tuning=f"data/07_model_output/{dataset}/{run}/tuning",
        tuning_trials=f"data/06_models/{dataset}/{run}/tuning/trials",
    )
