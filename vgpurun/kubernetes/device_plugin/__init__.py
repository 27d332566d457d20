"""The device plugin: it offers shares of this node's GPUs as resources that pods count."""
