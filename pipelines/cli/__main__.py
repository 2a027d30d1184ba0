"""``python -m pipelines.cli``: ``dustmap``, also for torchrun."""

from pipelines.cli import main

if __name__ == "__main__":
    main(prog_name="dustmap")
