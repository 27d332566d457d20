"""State folders on the disk, and files that the host shares with the library."""
