"""The documentation that is made from the code."""
