"""A module per verb: it reads the options, has the work done, and prints the result."""
