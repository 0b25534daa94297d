"""The kill matrix: properties that right code has, and proof that each bug of the catalogue lacks one.

from numpy_gpt.verify.kill_matrix import kill_matrix

print(kill_matrix())
"""

from numpy_gpt.verify.kill_matrix.matrix import Cell, KillMatrix, kill_matrix
from numpy_gpt.verify.kill_matrix.properties import PROPERTIES
from numpy_gpt.verify.kill_matrix.property import Property

__all__ = ["PROPERTIES", "Cell", "KillMatrix", "Property", "kill_matrix"]
