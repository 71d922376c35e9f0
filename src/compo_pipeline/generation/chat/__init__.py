"""Models that answer in words, behind an OpenAI-compatible endpoint."""
