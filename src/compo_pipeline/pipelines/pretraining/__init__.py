"""Pretraining: the small base model `scenes-base`, trained on rendered scenes alone."""
