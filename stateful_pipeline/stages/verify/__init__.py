"""Proves built targets equal to eager PyTorch over rollouts."""
