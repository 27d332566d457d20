"""The configuration files of the administrator and the user."""
