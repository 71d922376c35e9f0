"""attention: where a phrase looks in an image, before fine-tuning and after."""
