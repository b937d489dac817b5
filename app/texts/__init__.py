"""Texts as data: one module per place on the page, both languages side by side."""
