"""The exercises, one file each: what is said about it, how it is checked, and where the book has no such
operation, its forward and its solution."""
