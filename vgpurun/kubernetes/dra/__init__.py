"""The DRA plugin: it offers shares of this node's GPUs to resource claims."""
