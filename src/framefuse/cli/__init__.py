"""The command line: one or two related verbs per file. `app.py` joins them; `entry.py` is the entry point of the shell command."""
