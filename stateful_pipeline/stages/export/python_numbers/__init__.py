"""Python's numbers that depend on data (``int(self.n) / 3``), computed as Python computes them.

Three steps, around PyTorch's TorchScript exporter: ``graph`` gives what computes with numbers
operators of our own (``operators``); the exporter writes these as they are; ``forms`` and
``functions`` write them in ONNX afterwards, with ``nodes``.
"""
