"""Folders of state and caches."""

from __future__ import annotations

from compo_pipeline.configuration.settings import settings


@settings
class PathSettings:
    """Settings of folders for state and caches, which are no entries of the catalog."""

    features: str
    """Features of frozen image towers, for every trial; deleting them is always safe."""
    counterfactuals_state: str
    """Every text and image that any run has made; it outlives what DVC deletes before a stage."""
    recaptions_state: str
    """Every answer of a captioning model that any run got; it outlives what DVC deletes before a
    stage."""
    resume: str
    """State to resume a training from; it outlives what DVC deletes before a stage."""
    embeddings: str
    """Embeddings by every model that `kedro run --pipeline=benchmark` has scored; deleting them is
    always safe."""
    model_output: str
    """Results of the runs of a dataset, in <method>/<variant>/seed=<n>."""
    tuning: str
    """Records of a study."""
    tuning_trials: str
    """States of its trials."""
