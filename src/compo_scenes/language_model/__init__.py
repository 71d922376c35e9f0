"""Training of compo_en, the spaCy pipeline that parses captions, and its accuracy."""
