"""The servers and workers of a team on one machine, run by supervisord."""
