"""Browser-side parts of the page: one JavaScript file and one thin Python constructor each."""
