"""What the verbs print: tables, JSON, the screen of `top`. No view changes anything."""
