"""wise_ft: what lies between a run's base and its fine-tuned model, ratio by ratio."""
