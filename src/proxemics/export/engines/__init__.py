"""Engines that run a bundle: torch, ONNX Runtime, OpenVINO."""
