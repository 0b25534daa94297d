"""For learners: one training step as a page to explore, and exercises to write the backward pass oneself."""
