"""Learning backprop from the code that runs."""
