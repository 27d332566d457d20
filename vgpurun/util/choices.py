"""The words that an option is one of, where help and configuration know them before anything else is loaded."""

DRIVER_MODES = ("auto", "toolkit", "cdi", "mount", "sim")
PLACE_POLICIES = ("spread", "binpack")
PULL_POLICIES = ("missing", "always", "never")
