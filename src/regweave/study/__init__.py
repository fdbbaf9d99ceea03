"""Studies of methods: evaluation on held-out patients, comparison, demonstration, the paper's experiments."""
