"""The model as one ONNX graph, written once and shared by the engines that run graphs: ONNX Runtime, OpenVINO, TensorRT."""
