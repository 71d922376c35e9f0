"""wise_ft: models interpolated between a run's base and its fine-tuned model."""
