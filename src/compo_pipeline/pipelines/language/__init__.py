"""The language pipeline: trains, judges and ships compo_en."""
