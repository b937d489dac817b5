"""Six lessons: each one interaction, one insight, every number computed from recorded data.

`numbers` is the arithmetic of the formats on a handful of values (numpy only), `material` holds what was recorded. A
lesson is a pair: `budget` turns material and controls into facts, `page_budget` adds words, controls and figures;
`course` lines the pages up for `stage.js`.
"""
