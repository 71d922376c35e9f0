"""attention: attention of phrases over images, before fine-tuning and after."""
