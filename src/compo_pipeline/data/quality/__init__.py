"""Data quality: measurements of caption rows, rules, and quarantine."""
