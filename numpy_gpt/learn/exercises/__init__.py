"""Exercises: write the backward pass, be told what is wrong, and train with it.

    workbook = Workbook(Path("exercises"))
    workbook.start("layer_norm")                        # writes exercises/layer_norm.py
    print(*workbook.check("layer_norm").lines, sep="\\n")
    model = GPT(config, ops=load_learner_ops(Path("exercises")).table)

An exercise's file is cut from the module in which its solution stands: for an operation of the book, the
book's own file. What a learner wrote runs in a process of its own; there it is compared, variable by
variable, with the solution run on the same numbers, and what is wrong goes through the gradient checker,
whose diagnosis is put into words that do not give the solution away.
"""

from numpy_gpt.learn.exercises.course import COURSE, UnknownExerciseError
from numpy_gpt.learn.exercises.learner_ops import LearnerOps, load_learner_ops
from numpy_gpt.learn.exercises.workbook import Answer, Workbook

__all__ = ["COURSE", "Answer", "LearnerOps", "UnknownExerciseError", "Workbook", "load_learner_ops"]
