"""Copies of many arrays on the host at the same time."""
