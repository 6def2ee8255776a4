"""From logits to tokens: parameters, filters and random numbers that depend on nothing but their own sequence."""
