"""Groups that share a GPU in space: the programs of a slice, as clients of an MPS server that vgpurun keeps."""
