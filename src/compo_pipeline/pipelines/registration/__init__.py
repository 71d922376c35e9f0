"""registration: the fine-tuned model becomes an open_clip folder and a version in MLflow."""
