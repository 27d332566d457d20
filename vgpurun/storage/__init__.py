"""What vgpurun keeps on the disk for each container, and files that the host shares with the library."""
