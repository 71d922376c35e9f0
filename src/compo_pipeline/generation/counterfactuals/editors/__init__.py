"""Caption editors: one minimal edit that changes a caption's meaning, or keeps it."""
