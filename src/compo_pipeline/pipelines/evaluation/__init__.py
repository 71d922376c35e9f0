"""evaluation: base, control and fine-tuned model on the same items, side by side."""
