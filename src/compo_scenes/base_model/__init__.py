"""Training of `scenes-base` on rendered scenes."""
