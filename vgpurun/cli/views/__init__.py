"""The output of the verbs: tables, JSON, the screen of `top`. No view changes anything."""
