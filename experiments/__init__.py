"""The commands, the methods that are compared, the stages of a run, tables, reports and benchmarks."""
