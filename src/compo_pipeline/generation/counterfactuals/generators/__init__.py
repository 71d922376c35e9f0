"""Image generators: images of edited captions."""
