"""The study: cases, rivals and inputs of the four papers, measured, gathered and drawn."""
