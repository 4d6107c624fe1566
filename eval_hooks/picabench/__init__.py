"""PICABench: the benchmark's files, generation, questions and hook."""
