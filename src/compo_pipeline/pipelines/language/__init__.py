"""The language pipeline: trains, evaluates and assembles compo_en."""
