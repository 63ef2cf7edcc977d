"""The command line: one file a verb; `app.py` joins them, `entry.py` is what the shell starts."""
