"""``python -m pipelines.fit``: ``dustmap fit``, for torchrun."""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    main(["fit", *sys.argv[1:]], prog_name="dustmap")
