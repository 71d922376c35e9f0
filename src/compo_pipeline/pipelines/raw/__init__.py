"""Raw data: scenes are rendered, other sources are located and checked."""
