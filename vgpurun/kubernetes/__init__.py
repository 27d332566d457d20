"""The parts of a Kubernetes node: they give its pods shares of GPUs, by the limits that containers get elsewhere."""
