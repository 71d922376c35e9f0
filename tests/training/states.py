"""States of trainings on disk."""

from compo_pipeline.methods.contract import Method
from compo_pipeline.training.fingerprint import fingerprint_of
from compo_pipeline.training.inputs import TrainingInputs
from compo_pipeline.training.run import saved_progress


def steps_done(plan: TrainingInputs, method: Method, name: str) -> int:
    """Number of steps that an earlier run of the same configuration has done."""
    saved = saved_progress(plan, name, fingerprint_of(plan, method))
    return saved.step if saved else 0
