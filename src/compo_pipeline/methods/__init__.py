"""Fine-tuning methods: one file each, behind the interface that the training loop uses."""
