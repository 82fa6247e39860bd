"""Pictures and reports of kvlab.results files; the command is `kvplot` (cli.py)."""
