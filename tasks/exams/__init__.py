"""Exams: files of questions with known answers, put to a model.

questions   reading a file of questions; every broken line is named
scoring     what a model answers: the choice of highest likelihood, or what greedy generation writes
figures     accuracies with their intervals, and what guessing would reach
exam        questions kept in the store; a model and questions to a table of answers
"""
