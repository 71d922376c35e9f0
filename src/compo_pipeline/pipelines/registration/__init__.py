"""registration: the fine-tuned model becomes a folder for open_clip and a version in MLflow."""
