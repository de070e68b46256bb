"""Seeing a training: what is noted while it runs, and the page that shows it afterwards.

Nothing is imported here: the stage needs the notes, and only the page needs what draws.
"""
