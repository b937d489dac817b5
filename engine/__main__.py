"""`python -m engine generate | compare | calibrate | quantize | tune`: see `engine.cli`."""

import contextlib
import gc
import os
import sys

# Importing diffusers makes a million objects that stay: looking through them again and again for garbage takes a fifth
# of the import.
gc.set_threshold(200_000, 50, 50)

from engine.cli import main  # noqa: E402


def _leave(code: int) -> None:
    """End the process: all files are written and closed, and taking the libraries apart would take three seconds."""
    for stream in (sys.stdout, sys.stderr):
        # Whoever read it may be gone, which is nothing to complain about any more.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
