"""Training: views to a checkpoint, and to the control that it is compared with."""
