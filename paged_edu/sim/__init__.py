"""The paper's evaluation without its GPUs: the project's scheduler and memory managers, a cost model of a step, and a virtual clock (Paper §6)."""
