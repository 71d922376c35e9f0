"""The items on which two scored models differ."""
