"""attention: where a phrase looks in a picture, before fine-tuning and after."""
