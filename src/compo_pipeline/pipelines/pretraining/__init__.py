"""Pretraining: the small base model `scenes-base`, made from rendered scenes alone."""
