"""Regular English inflection, articles and capitals. Exceptions stand in the lexicon."""

from __future__ import annotations

import re

_VOWELS = "aeiou"
_SIBILANT = re.compile(r"(s|x|z|ch|sh)$")
_CONSONANT_Y = re.compile(r"[^aeiou]y$")
# One syllable that ends in consonant, vowel, consonant: stop, sit, quit; never w, x or y.
_DOUBLES = re.compile(r"^[^aeiou]*(qu)?[aeiou][^aeiouwxy]$")
# Words that sound unlike they are written: with a vowel first, or without one.
_CONSONANT_SOUND = re.compile(r"^(u[bcfkst][aeiou]|u[bkst]$|eu|ewe|one\b|once\b|ouija)")
_VOWEL_SOUND = re.compile(r"^(hour|heir|honest|honou?r|suv|8|1[18]\b|[fhlmnrsx]-|[fhlmnrsx]$)")
# "uniform" and "union", but "uninteresting" and "unidentified": only these begin with "you".
_UNI = re.compile(r"^uni(?!n|d|m[ap])")


def regular(lemma: str, tag: str) -> str:
    """The form of a lemma that has no irregular one.

    Args:
        lemma: lower-case; of several words the last one is inflected.
        tag: a fine tag (Penn Treebank): NN, NNS, VB, VBZ, VBG, VBD, VBN, JJ, JJR, JJS, or any
            other, which leaves the word as it is.
    """
    if tag in ("NNS", "VBZ"):
        return _with_s(lemma)
    if tag == "VBG":
        return _with_suffix(lemma, "ing")
    if tag in ("VBD", "VBN"):
        return _with_suffix(lemma, "ed")
    if tag == "JJR":
        return _with_suffix(lemma, "er")
    if tag == "JJS":
        return _with_suffix(lemma, "est")
    return lemma


def _with_s(word: str) -> str:
    if _SIBILANT.search(word):
        return word + "es"
    return word[:-1] + "ies" if _CONSONANT_Y.search(word) else word + "s"


def _with_suffix(word: str, suffix: str) -> str:
    if suffix == "ing" and word.endswith("ie"):
        return word[:-2] + "ying"
    if suffix != "ing" and _CONSONANT_Y.search(word):
        return word[:-1] + "i" + suffix
    if word.endswith("e") and (suffix != "ing" or not word.endswith(("ee", "oe", "ye"))):
        return word[:-1] + suffix
    return word + word[-1] + suffix if _DOUBLES.match(word) else word + suffix


def article(following: str) -> str:
    """`a` or `an`, as the word that follows wants it; its case does not matter."""
    word = following.lower()
    if _CONSONANT_SOUND.match(word) or _UNI.match(word):
        return "a"
    return "an" if _VOWEL_SOUND.match(word) or word[:1] in _VOWELS else "a"


def capitalised_as(word: str, model: str) -> str:
    """A lower-case word with the capitals of the one it stands for: none, the first, or all."""
    letters = [letter for letter in model if letter.isalpha()]
    if not letters or not letters[0].isupper():
        return word
    if len(letters) > 1 and all(letter.isupper() for letter in letters):
        return word.upper()
    return word[:1].upper() + word[1:]
