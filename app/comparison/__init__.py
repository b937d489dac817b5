"""Compare: what was measured, as points, tables and sentences. No model runs here."""
