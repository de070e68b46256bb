"""A team's servers on one box: started, looked at and ended by `sheepfold up`, `status` and `down`.

`settings` is what was asked for, `services` what that means as commands, `processes` knows what is ours on the machine,
`box` brings it all up and down, `register` tells Prefect about pools, deployments and automations.
"""
