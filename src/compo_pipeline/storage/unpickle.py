"""Program that reads C2LIP's pickle of captions and noun phrases, and prints them as JSON lines.

`datasets.phrases` runs it in a process of its own, without this package or any other installed one
(`python -I -S`). It is the only code here that opens a pickle; training opens none.

Is `pickle.Unpickler` with a `find_class` that refuses everything enough? Against code, yes: the
opcodes that call something (REDUCE, INST, OBJ, NEWOBJ, NEWOBJ_EX, BUILD) call what lies on the
stack, or a method of it, and classes and functions come onto the stack by `find_class` alone
(GLOBAL, STACK_GLOBAL, INST; EXT asks it too, and the registry of a new process is empty). What is
left are numbers, texts, bytes, lists, tuples, dicts and sets, whose types have no `__setstate__`.
Persistent ids are refused by default. Against damage, no: a memo index of 2**31 asks for gigabytes,
a length may be any number, hashing tuples within tuples can overflow the stack of C, and a text
that is in a list a million times is written a million times. So this process has limits of memory,
time and output, writes no files, and its end, however it comes, is a message of the other's.
"""

import json
import pickle  # noqa: TID251 # nothing of it is run: see above
import reprlib
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

LONGEST = 2_000
"""Characters of a text."""
MOST = 100
"""Phrases of a caption."""


class PlainUnpickler(pickle.Unpickler):
    """Unpickler for numbers, texts, lists, dicts and the like; it refuses every class."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse the class or function that a pickle names.

        Raises:
            pickle.UnpicklingError: always.
        """
        called = reprlib.repr(f"{module}.{name}")
        raise pickle.UnpicklingError(f"it names {called}; expected plain values alone")


def limit(memory: int, seconds: int) -> None:
    """Limit this process's memory in bytes and CPU time in seconds, and forbid writing files."""
    bounds = {
        resource.RLIMIT_AS: (memory, memory),
        # At the soft limit the signal is SIGXCPU, which tells the reason; at the hard one SIGKILL.
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_FSIZE: (0, 0),
    }
    for kind, soft_and_hard in bounds.items():
        resource.setrlimit(kind, soft_and_hard)


def entries(file: BinaryIO, caption: str) -> Iterator[dict[str, Any]]:
    """Yield the samples of C2LIP's pickle: key, path of the image, caption, noun phrases.

    The layout is that of `CC3m_NP_PKL_Dataset` (src/training/data.py of
    SamsungLabs/concept_centric_clip): a dict of {"image_path", "captions": {name: text},
    "nounphrases": [text]}. Of a sample that is not so the key alone is given.

    Args:
        file: the pickle.
        caption: name of the caption among those of a sample.
    """
    samples = PlainUnpickler(file).load()
    if not isinstance(samples, dict):
        raise pickle.UnpicklingError(f"it holds a {type(samples).__name__}, expected a dict")
    for key, sample in samples.items():
        found: dict[str, Any] = {
            "key": reprlib.repr(key) if not isinstance(key, str) else key[:LONGEST]
        }
        values = sample if isinstance(sample, dict) else {}
        captions = values.get("captions")
        image, phrases = values.get("image_path"), values.get("nounphrases") or []
        text = captions.get(caption) if isinstance(captions, dict) else None
        if isinstance(phrases, list | tuple) and len(phrases) <= MOST:
            texts = [image, text, *phrases]
            if all(isinstance(one, str) and len(one) <= LONGEST for one in texts):
                found |= {"image": image, "caption": text, "phrases": list(phrases)}
        yield found


def main(path: str, caption: str, memory: int, seconds: int) -> None:
    """Print a pickle's samples as JSON lines; an error's message is the last line of stderr."""
    limit(memory, seconds)
    written = 0
    try:
        with Path(path).open("rb") as file:
            for entry in entries(file, caption):
                line = json.dumps(entry)
                written += len(line)
                if written > 2 * memory:  # more than it may have in memory: the same texts again
                    sys.exit("its texts repeat, and together need more memory than it may have")
                sys.stdout.write(f"{line}\n")
    except MemoryError:
        sys.exit("it needs more memory than it may have")
    except Exception as error:  # noqa: BLE001 # a damaged pickle raises any
        sys.exit(f"{type(error).__name__}: {str(error)[:300]}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
