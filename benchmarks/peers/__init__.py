"""Other engines beside this one: each installed in an environment of its own, same prompts, in turns."""
