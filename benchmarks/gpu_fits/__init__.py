"""Parameters of the GPU cost model from public measurements, and how far they reach. Needs scipy and pyarrow, and the data
(`ai-dynamo/aiconfigurator`) in a folder that the command line names; nothing here is part of the package."""
