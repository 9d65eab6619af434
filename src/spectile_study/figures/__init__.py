"""Figures and tables: one look for all four papers, and every mark and cell tied to a record."""
