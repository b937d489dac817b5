"""Six lessons: each one interaction, one insight, every number computed from recorded data.

`numbers` is the arithmetic of the formats on a handful of values (numpy only), `data` finds the
recorded material, `lesson_*` turn material and controls into facts, `view` adds words and figures.
"""
