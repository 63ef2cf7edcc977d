"""The command line: one or two related verbs per file. `app.py` joins them; the shell command enters at `entry.py`."""
