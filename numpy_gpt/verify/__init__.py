"""Proof that the hand-written backward passes are right."""
