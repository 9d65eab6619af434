"""What the workflow measures, a package for each paper."""
