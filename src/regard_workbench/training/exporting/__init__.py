"""Trained models for other programs: exported graphs of torch and ONNX, in standard operators."""
