"""Takes the GPUs from programs that go on without them, and gives them back."""
