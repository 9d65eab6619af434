"""Figures and tables: one look for all four papers (:mod:`spectile.figures.style`)."""
