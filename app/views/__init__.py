"""One file per place on the page: components and wiring only."""
