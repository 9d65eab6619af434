"""Figures and tables: one look for all four papers (:mod:`spectile_study.figures.style`)."""
