"""This process's own side: its terminal, its standard streams and its signals."""
