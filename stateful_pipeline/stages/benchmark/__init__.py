"""Times a step of each target beside eager PyTorch."""
