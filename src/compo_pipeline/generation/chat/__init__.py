"""Client of chat models behind an OpenAI-compatible endpoint."""
