"""Who gets which GPU, and who has to wait: nothing is promised twice."""
