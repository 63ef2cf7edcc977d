"""Helpers that no room owns, such as files, names, text, polygons, YAML, redaction and facts about the machine."""
