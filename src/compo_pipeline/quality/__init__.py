"""Measuring caption rows and holding them against rules, before anything is learned from them."""
