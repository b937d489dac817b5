"""The web app: Lab, Learn and Compare. Importing it loads no torch and touches no device."""
