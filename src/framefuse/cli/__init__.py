"""The command line: one file per verb. `app.py` joins them; `entry.py` is the entry point of the shell command."""
