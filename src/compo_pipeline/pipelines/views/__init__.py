"""Views: what a method wants to see of each sample in each epoch, as tables on disk."""
