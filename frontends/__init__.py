"""Where graphs come from: graph.json, ONNX."""
