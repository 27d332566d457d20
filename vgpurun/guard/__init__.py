"""The daemon that sees what no library counts, and acts on what is over its limit."""
