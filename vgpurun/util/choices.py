"""The choices of options, where help and configuration find them before anything else is loaded."""

DRIVER_MODES = ("auto", "toolkit", "cdi", "mount", "sim")
ENFORCE_MODES = ("auto", "library", "driver")
PLACE_POLICIES = ("spread", "binpack")
PULL_POLICIES = ("missing", "always", "never")
# The guard's actions on a container above its memory limit, one above its share of time, and a program outside.
GUARD_MEMORY = ("off", "warn", "freeze", "kill")
GUARD_SWITCHES = ("unheld", "all")  # the GPU's own scheduler does both
GUARD_COMPUTE = ("off", "warn", "hold", *GUARD_SWITCHES)
GUARD_OUTSIDE = ("off", "warn", "kill")
