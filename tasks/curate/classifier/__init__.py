"""A small classifier of the user's own: learns good from bad texts by examples, and scores every document.

`settings` names the examples, `examples` reads them, `features` turns texts into numbers, `logistic` fits, `training`
chooses the regularisation and measures what the result is worth, `stages` makes artefacts of it. Nothing is imported
here, because the settings are read by every command.
"""
