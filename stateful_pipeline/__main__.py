"""``python -m stateful_pipeline`` is the command ``pipeline``."""

from stateful_pipeline.cli import main

if __name__ == "__main__":
    main()
