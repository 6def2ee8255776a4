"""The serving engine: runners that carry a step out, `Engine.step`, and the offline entry point `LLM`."""
