"""Keys of the parameters: checks against conf/base, and the reference of all keys."""
