"""`python -m engine generate | compare | calibrate | quantize | tune`: see `engine.cli`."""

import sys

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
