"""Check caption rows against rules; bad rows go to quarantine."""
