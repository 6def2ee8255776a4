"""What `paged-edu bench ...` runs: timings of the real code, as a table and as JSON."""
