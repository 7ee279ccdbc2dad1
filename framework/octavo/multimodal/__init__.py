"""Media of prompts: fetched, checked, decoded and named by their content, under limits."""
