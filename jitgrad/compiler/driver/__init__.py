"""The driver: what runs the steps of a plan, on one thread or several, and the memory that they use."""
