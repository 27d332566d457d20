"""The parts of a Kubernetes node: what gives its pods shares of GPUs by the limits that containers get elsewhere."""
