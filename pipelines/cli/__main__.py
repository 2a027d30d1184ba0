"""``python -m pipelines.cli``: the same as the command ``dustmap``."""

from pipelines.cli import main

if __name__ == "__main__":
    main()
