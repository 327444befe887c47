"""The name under which the adapter logs: vLLM's own handlers show what is below its name, and nothing else."""

LOGGER = "vllm.orbitkv"
