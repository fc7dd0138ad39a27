"""The reference models that ``configs/`` point at, with their data and training script."""
