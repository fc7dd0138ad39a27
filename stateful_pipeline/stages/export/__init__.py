"""Writes ONNX with explicit states and the contract inside."""
