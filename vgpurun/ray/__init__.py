"""Ray: `num_gpus=f` is f of a GPU's memory and of its time, in every worker of a node."""
