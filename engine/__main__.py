"""`python -m engine generate | compare | calibrate | quantize | tune`: see `engine.cli`."""

import contextlib
import gc
import os
import sys

# Importing diffusers makes a million objects that stay: looking through them again and again for garbage takes a fifth
# of the import.
gc.set_threshold(200_000, 50, 50)


def _run() -> int:
    """The exit code of the command; a Ctrl-C while it is still being imported ends as one during its work does."""
    try:
        _open_streams()
        from engine.cli import main

        return main()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


def _open_streams() -> None:
    """Whatever the terminal cannot show costs a question mark, and an output that is closed costs nothing."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")


def _leave(code: int) -> None:
    """End the process: all files are written and closed, and taking the libraries apart would take three seconds."""
    for stream in (sys.stdout, sys.stderr):
        # Whoever read it may be gone, which is nothing to complain about any more.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(_run())
