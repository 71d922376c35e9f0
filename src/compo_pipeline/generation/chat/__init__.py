"""Models that answer in words: behind an OpenAI-compatible endpoint, or in a local folder."""
