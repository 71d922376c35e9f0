"""Reading, preparing and measuring the captions of a source."""
