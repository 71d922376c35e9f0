"""Methods, variants and seeds side by side."""
