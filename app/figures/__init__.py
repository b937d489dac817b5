"""Pure functions from data to plotly figures (plain dictionaries): no Gradio, no torch, no state."""
