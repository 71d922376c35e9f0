"""export: the checkpoint in the formats of other programs: transformers, ONNX."""
