"""Processes that extract documents and may be killed, and how their answers become one outcome."""
