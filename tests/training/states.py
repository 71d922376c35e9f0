"""States of trainings on disk."""

from compo_pipeline.methods.contract import Method
from compo_pipeline.training.checkpoint import read_matching_progress
from compo_pipeline.training.inputs import TrainingInputs, fingerprint_of


def steps_done(plan: TrainingInputs, method: Method, name: str) -> int:
    """Number of steps that an earlier run of the same configuration has done."""
    mark, overwrite = fingerprint_of(plan, method), plan.settings.overwrite
    saved = read_matching_progress(plan.state(name), mark, overwrite=overwrite)
    return saved["progress"]["step"] if saved else 0
