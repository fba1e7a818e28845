"""The command line: one file per command. `main` assembles them; only `terminal` draws."""
