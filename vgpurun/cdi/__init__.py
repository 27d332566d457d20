"""The Container Device Interface: files by which any engine gives a container a share of a GPU, without vgpurun."""
