"""What a program did on the GPU: read from what the library recorded, written as reports, traces and logs."""
