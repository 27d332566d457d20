"""Profiles of programs on the GPU: read from the library's records, written as reports, traces and logs."""
