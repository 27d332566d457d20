"""The guard's agent, which looks after what is suspended, idles, or is over."""
