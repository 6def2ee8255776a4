"""The paper: block pool, block tables, KV managers, sequences, scheduler. Pure Python: no torch, no I/O, no wall clock."""
