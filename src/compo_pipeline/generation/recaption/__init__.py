"""Captions that a model writes of the images of a source, in place of the source's own."""
